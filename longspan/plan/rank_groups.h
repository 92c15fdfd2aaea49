// The groups of ranks of a run, as one list: the mesh makes them and shuts them down, the accounts
// of memory and of open files count them. No torch.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// comm/mesh.h says what each is.
enum class GroupKind {
  kWorld,
  kSequence,
  kData,
  kRing,
  kUlysses,
  kWindow,
  kWindows,
  kShard,
  kReplicas,
  kSlices,
  kExperts,
  kExpertShard,
  kExpertReplicas,
};

/// The group of a kind that a rank is in.
struct RankGroup {
  GroupKind kind;
  std::string_view name;
  int index;  // of the groups of this kind
  int rank;   // the rank's place in the group
  int size;   // 1: nobody else is in it, and it is not made
  /// The kind before it in the list whose group has the same ranks and is taken for this one, so
  /// that a run has fewer connections.
  std::optional<GroupKind> same_as = std::nullopt;
  bool shares_row = false;  // inside a sequence group
};

/// One of each kind, in the order in which all ranks make them.
std::vector<RankGroup> groups_of_rank(const ParallelPlan& plan, int rank);

/// The groups of the plan's ranks that have connections of their own.
std::vector<RankGroup> connected_groups(const ParallelPlan& plan);

}  // namespace longspan
