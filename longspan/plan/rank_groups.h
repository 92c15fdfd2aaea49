// The groups of ranks of a run, as one list. The mesh creates and destroys the groups. The
// estimates of memory and open files count the groups. No torch.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Kinds of groups; comm/mesh.h explains each kind.
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

/// A rank's group of one kind.
struct RankGroup {
  GroupKind kind;
  std::string_view name;
  int index;  // index among the groups of this kind
  int rank;   // the rank's index in the group
  int size;   // 1: the rank is alone, and no group is made
  /// An earlier kind in the list whose group has the same ranks. This kind reuses the earlier
  /// group, to save connections.
  std::optional<GroupKind> same_as = std::nullopt;
  bool shares_row = false;  // inside a sequence group
};

/// Returns one group of each kind. All ranks make the groups in this order.
std::vector<RankGroup> groups_of_rank(const ParallelPlan& plan, int rank);

/// Returns the groups of the plan's ranks that have their own connections.
std::vector<RankGroup> connected_groups(const ParallelPlan& plan);

}  // namespace longspan
