// The mean over all labels of -log p, with a factor for each label under use_dft_loss.
#include <algorithm>
#include <cmath>

#include "longspan/objectives/sft.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

class TokenCrossEntropy : public Objective {
 public:
  explicit TokenCrossEntropy(const ObjectiveContext& context) : model_(context.model) {
    if (context.preferences.use_dft_loss) factors_ = dft_factors;
  }

  double weight(const Row& row) const override {
    return static_cast<double>(count_labels(row.whole));
  }
  bool replicated() const override { return false; }
  at::Tensor loss(const Row& row, size_t, double total_weight, Averages&) override {
    return sft_loss(model_, row.local, std::max<int64_t>(1, std::llround(total_weight)),
                    factors_);
  }

 private:
  Decoder& model_;
  LossFactors factors_;
};

}  // namespace

std::unique_ptr<Objective> make_token_cross_entropy(const ObjectiveContext& context) {
  return std::make_unique<TokenCrossEntropy>(context);
}

}  // namespace longspan
