#include <utility>

#include "longspan/sequence_parallel/sequence_parallel.h"

#include "longspan/sequence_parallel/whole_sequence.h"

namespace longspan {
namespace {

/// Any strategy, for models with layers that go over whole rows.
class OverWholeRows : public SequenceParallel {
 public:
  OverWholeRows(std::unique_ptr<SequenceParallel> inner, Group group, RecurrentWay way)
      : inner_(std::move(inner)), group_(std::move(group)), way_(way) {}

  at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                    const AttentionSpec& spec, const Packing& packing,
                    const at::Tensor& sinks_N) override {
    return inner_->attend(q_TNH, k_TMH, v_TMH, spec, packing, sinks_N);
  }
  at::Tensor attend_latent(const at::Tensor& q_TNH, const at::Tensor& x_TJ,
                           const std::shared_ptr<const LatentKeys>& keys, const AttentionSpec& spec,
                           const Packing& packing) override {
    return inner_->attend_latent(q_TNH, x_TJ, keys, spec, packing);
  }
  bool overlaps_projections() const override { return inner_->overlaps_projections(); }
  at::Tensor project_and_attend(const AttentionProjections& projections, const AttentionSpec& spec,
                                const Packing& packing) override {
    return inner_->project_and_attend(projections, spec, packing);
  }
  std::shared_ptr<const WholeRow> whole_row(const Packing& packing) const override {
    return std::make_shared<WholeSequence>(*inner_, packing, group_, way_);
  }
  int rank() const override { return inner_->rank(); }
  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    return inner_->token_order_of(rank, packing, multiple);
  }

 private:
  std::unique_ptr<SequenceParallel> inner_;
  Group group_;
  RecurrentWay way_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_attention(const ParallelPlan& plan, const Mesh& mesh,
                                                 const BlockKernel& kernel) {
  if (plan.sequence_size == 1) return make_local(kernel);
  return std::make_unique<OverWholeRows>(plan.method->make(plan, mesh, kernel), mesh.sequence,
                                         plan.recurrent_way);
}

}  // namespace longspan
