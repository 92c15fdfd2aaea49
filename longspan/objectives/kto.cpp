#include "longspan/objectives/kto.h"

#include <ATen/ATen.h>

namespace longspan {

KtoBatch kto_batch(const at::Tensor& sums_3) {
  const at::Tensor num_answers = sums_3.select(0, 1);
  const at::Tensor mean = sums_3.select(0, 0) / num_answers.clamp_min(1);
  // A NaN mean becomes 0 here; the losses themselves show it.
  return {.kl = at::where(mean.gt(0), mean, at::zeros_like(mean)),
          .num_answers = num_answers,
          .num_desirable = sums_3.select(0, 2)};
}

KtoTerms kto_terms(const KtoScores& scores, const KtoOptions& options, const KtoBatch& batch) {
  const at::Tensor ratio_B = scores.policy_B - scores.reference_B;
  const at::Tensor margin_B =
      at::where(scores.desirable_B, ratio_B - batch.kl, batch.kl - ratio_B) * options.beta;
  const at::Tensor weight_B =
      at::where(scores.desirable_B, at::full_like(ratio_B, options.desirable_weight),
                at::full_like(ratio_B, options.undesirable_weight));
  KtoTerms terms;
  terms.losses_B = weight_B * (1 - at::sigmoid(margin_B));
  if (options.sft_weight > 0) {
    // Without desirable answers all terms are zero, whatever `share` is.
    const at::Tensor share = batch.num_answers / batch.num_desirable.clamp_min(1);
    const at::Tensor nll_B = -scores.policy_B / scores.labels_B.clamp_min(1);
    terms.losses_B = terms.losses_B + options.sft_weight * share * share * nll_B *
                                          scores.desirable_B.to(nll_B.scalar_type());
  }
  terms.rewards_B = options.beta * ratio_B.detach();
  return terms;
}

}  // namespace longspan
