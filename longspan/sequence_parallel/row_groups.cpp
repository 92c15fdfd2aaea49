#include "longspan/sequence_parallel/row_groups.h"

#include <utility>

#include "longspan/comm/submeshes.h"

namespace longspan {

RowGroups::RowGroups(std::map<int, ParallelPlan> plans, const Mesh& mesh, const BlockKernel& kernel)
    : plans_(std::move(plans)), mesh_(mesh), kernel_(kernel) {}

void RowGroups::connect(const RanksOfRun& ranks) {
  // All ranks make their groups in one order.
  for (const auto& [degree, plan] : plans_) {
    for (const RankRange& range : ranks.ranges(degree)) {
      if (!range.holds(mesh_.world.rank())) continue;
      attention_[range] = degree == 1 ? make_local(kernel_)
                                      : make_attention(plan, mesh_.parts->of(range, plan), kernel_);
    }
  }
}

}  // namespace longspan
