// The attention of rows that have different numbers of ranks.
#pragma once

#include <map>
#include <memory>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/dealing.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// Throws UserError on all ranks unless all ranks have equally many ranks on their machines and
/// equal plans of rows, from which each rank makes its own dealing. Collective over the world.
void require_equal_plans(const Group& world, const RanksOfRun& ranks,
                         const std::map<int, ParallelPlan>& plans);

class RowGroups {
 public:
  /// `plans`: by number of ranks. `mesh`: of the run. `mesh` and `kernel` must outlive this object.
  RowGroups(std::map<int, ParallelPlan> plans, const Mesh& mesh, const BlockKernel& kernel);

  /// Makes the groups and the attention of all ranges that hold this rank (RanksOfRun::ranges).
  /// No-op without plans. Collective over the world.
  void connect(const RanksOfRun& ranks);
  /// Returns the attention of rows that `ranks` share, a range that holds this rank.
  SequenceParallel& of(const RankRange& ranks) const { return *attention_.at(ranks); }

 private:
  std::map<int, ParallelPlan> plans_;
  const Mesh& mesh_;
  const BlockKernel& kernel_;
  std::map<RankRange, std::unique_ptr<SequenceParallel>> attention_;
};

}  // namespace longspan
