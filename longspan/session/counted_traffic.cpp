#include "longspan/session/counted_traffic.h"

#include <type_traits>
#include <utility>

#include "longspan/config/config.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

class CountedReference : public Reference {
 public:
  CountedReference(std::unique_ptr<Reference> own, RowTraffic& traffic)
      : own_(std::move(own)), traffic_(traffic) {}

  at::Tensor document_logprobs(const Row& row, const SumOver& sum_over) override {
    return counted(row, [&] { return own_->document_logprobs(row, sum_over); });
  }
  at::Tensor token_logprobs(const Row& row, double temperature) override {
    return counted(row, [&] { return own_->token_logprobs(row, temperature); });
  }
  TeacherHead teacher_head(const Row& row) override {
    return counted(row, [&] { return own_->teacher_head(row); });
  }
  ShardedParameters::HeldBytes held_bytes() const override { return own_->held_bytes(); }

 private:
  template <typename Pass>
  std::invoke_result_t<Pass> counted(const Row& row, const Pass& pass) {
    traffic_.begin_reference();
    std::invoke_result_t<Pass> result = pass();
    traffic_.end_reference(row.local.packing);
    return result;
  }

  std::unique_ptr<Reference> own_;
  RowTraffic& traffic_;
};

}  // namespace

RowTraffic row_traffic_of(const Config& config, const TrafficParts& parts) {
  const RunPlan& plan = parts.plan;
  const AttentionTraffic::Sending sending{
      .element_bytes = computes_in_bf16(config.model, config.optimization) ? 2 : 4,
      .checkpointing = !config.model.disable_gradient_checkpointing,
      .output_is_known = parts.output_is_known};
  // Without ref_model the reference is the trained model as it was, without adapters.
  const ModelSpec& reference = plan.reference ? *plan.reference : plan.model.spec;
  return {AttentionTraffic(parts.mesh, {plan.attended, plan.parallel},
                           {reference, plan.parallel_of_reference()}, sending, parts.device),
          ExpertTraffic(parts.experts, plan.model.spec, reference, sending.element_bytes,
                        parts.device)};
}

std::unique_ptr<Reference> counted_reference(std::unique_ptr<Reference> own, RowTraffic& traffic) {
  return std::make_unique<CountedReference>(std::move(own), traffic);
}

}  // namespace longspan
