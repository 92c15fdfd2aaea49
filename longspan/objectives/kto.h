// KTO (arXiv 2402.01306): single answers, each desirable or not. B: answers; all tensors fp64.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

struct KtoOptions {
  double beta = 0.1;
  double desirable_weight = 1.0, undesirable_weight = 1.0;
  double sft_weight = 0.0;  // pref_ftx: weight of the desirable answers' mean token loss
};

struct KtoScores {
  at::Tensor policy_B, reference_B;  // sums of log p over the answers' labels
  at::Tensor labels_B;
  at::Tensor desirable_B;  // bool
};

/// Statistics of a whole step, over all processes and micro-batches: fp64 scalars [] on the device
/// of the scores, without a host sync.
struct KtoBatch {
  at::Tensor kl;  // max(0, mean over mismatched answers of log p - log p of the reference)
  at::Tensor num_answers, num_desirable;  // read only if sft_weight > 0
};
/// Makes the statistics from sums_3 [3]: the sum over mismatched answers of log p - log p of the
/// reference, the number of answers, and the number of desirable answers.
KtoBatch kto_batch(const at::Tensor& sums_3);

struct KtoTerms {
  at::Tensor losses_B;   // differentiable
  at::Tensor rewards_B;  // without gradient
};

/// Desirable: w (1 - sigmoid(b (ratio - kl))); undesirable: w (1 - sigmoid(b (kl - ratio))). The
/// loss of a step is the mean over its answers. The SFT part of a step is sft_weight times the
/// desirable answers' mean token loss, times answers / desirable answers, as in LLaMA-Factory.
KtoTerms kto_terms(const KtoScores& scores, const KtoOptions& options, const KtoBatch& batch);

}  // namespace longspan
