#include "longspan/session/loss_of_caller.h"

#include <ATen/core/Tensor.h>

#include "longspan/comm/differentiable.h"
#include "longspan/rows/batch.h"

namespace longspan {
namespace {

class CallersObjective final : public Objective {
 public:
  CallersObjective(const ObjectiveContext& context, const LossOfCaller& loss)
      : context_(context), loss_(loss) {}

  /// Unused: the caller's function divides by its own denominator.
  double weight(const Row& row) const override {
    return static_cast<double>(count_labels(row.whole));
  }
  bool replicated() const override { return loss_.whole_row; }

  at::Tensor loss(const Row& row, size_t /*row_number*/, double /*total_weight*/,
                  Averages& /*averages*/) override {
    LossInput input{.row = row,
                    .places_L = label_rows(row.local),
                    .logprobs_L = {},
                    .hidden_LD = {},
                    .sum_over_row = [sharers = row.sharers()](const at::Tensor& x) {
                      return sum_over(x, sharers);
                    }};
    switch (loss_.reads) {
      case LossOfCaller::Reads::kLogprobs:
        input.logprobs_L = context_.model.token_logprobs(row.local);
        break;
      case LossOfCaller::Reads::kHiddenStates:
        input.hidden_LD = context_.model.hidden_states(row.local, input.places_L);
        break;
    }
    return loss_.of_row(input);
  }

 private:
  const ObjectiveContext& context_;
  const LossOfCaller& loss_;
};

}  // namespace

std::unique_ptr<Objective> objective_of_caller(const ObjectiveContext& context,
                                               const LossOfCaller& loss) {
  return std::make_unique<CallersObjective>(context, loss);
}

}  // namespace longspan
