#include "longspan/objectives/kto.h"

#include <ATen/ATen.h>

namespace longspan {

KtoTerms kto_terms(const KtoScores& scores, const KtoOptions& options, const KtoBatch& batch) {
  const at::Tensor ratio_B = scores.policy_B - scores.reference_B;
  const at::Tensor margin_B =
      at::where(scores.desirable_B, ratio_B - batch.kl, batch.kl - ratio_B) * options.beta;
  const at::Tensor weight_B =
      at::where(scores.desirable_B, at::full_like(ratio_B, options.desirable_weight),
                at::full_like(ratio_B, options.undesirable_weight));
  KtoTerms terms;
  terms.losses_B = weight_B * (1 - at::sigmoid(margin_B));
  if (options.sft_weight > 0 && batch.num_desirable > 0) {
    const double share =
        static_cast<double>(batch.num_answers) / static_cast<double>(batch.num_desirable);
    const at::Tensor nll_B = -scores.policy_B / scores.labels_B.clamp_min(1);
    terms.losses_B = terms.losses_B + options.sft_weight * share * share * nll_B *
                                          scores.desirable_B.to(nll_B.scalar_type());
  }
  terms.rewards_B = options.beta * ratio_B.detach();
  return terms;
}

}  // namespace longspan
