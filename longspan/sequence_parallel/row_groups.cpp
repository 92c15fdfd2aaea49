#include "longspan/sequence_parallel/row_groups.h"

#include <utility>

#include "longspan/comm/submeshes.h"

namespace longspan {

RowGroups::RowGroups(std::map<int, ParallelPlan> plans, const Mesh& mesh, const BlockKernel& kernel)
    : plans_(std::move(plans)), mesh_(mesh), kernel_(kernel) {}

SequenceParallel& RowGroups::of(const RankRange& ranks) {
  std::unique_ptr<SequenceParallel>& attention = attention_[ranks];
  if (attention == nullptr) {
    const ParallelPlan& plan = plans_.at(ranks.count);
    attention = ranks.count == 1 ? make_local(kernel_)
                                 : make_attention(plan, mesh_.parts->of(ranks, plan), kernel_);
  }
  return *attention;
}

}  // namespace longspan
