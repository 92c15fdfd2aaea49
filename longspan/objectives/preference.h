// Losses over pairs of answers, from their log-probabilities. B: pairs; all tensors fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/registers/pair_loss.h"

namespace longspan {

struct PairOptions {
  PairLoss loss = PairLoss::kSigmoid;
  double beta = 0.1, label_smoothing = 0.0, simpo_gamma = 0.5;
  double sft_weight = 0.0;  // pref_ftx: weight of the chosen answer's mean token loss
};

/// Sums of log p over each answer's labels, and the label counts. The reference's sums are
/// undefined if the loss has no reference.
struct PairScores {
  at::Tensor chosen_B, rejected_B, reference_chosen_B, reference_rejected_B;
  at::Tensor chosen_labels_B, rejected_labels_B;
};

/// KL estimates of kto_pair (PairLossKind::has_baselines), for chosen and for rejected answers. An
/// estimate is the mean over all pairs of a step of log p - log p of the reference, clamped at 0. A
/// slope is the mean over pairs of the derivative of a pair's loss with respect to the estimate (0
/// if clamped). If the pairs are in different rows, the gradient through the estimate is computed
/// from the slope. fp64 scalars [] on the device of the scores, without a host sync; undefined for
/// other losses.
struct PairBaselines {
  at::Tensor chosen, rejected, chosen_slope, rejected_slope;
};
/// Returns zeros if there are no pairs. Throws std::logic_error for losses without baselines.
PairBaselines pair_baselines(const PairScores& all, const PairOptions& options);

struct PairTerms {
  at::Tensor losses_B;                              // differentiable
  at::Tensor chosen_rewards_B, rejected_rewards_B;  // implicit rewards, without gradient
  std::vector<at::Tensor> parts_B;                  // by PairLossKind::parts, without gradient
};

/// Returns the terms of a batch, whose loss is the mean of losses_B. Reads `baselines` only for
/// losses that have baselines.
PairTerms pair_terms(const PairScores& scores, const PairOptions& options,
                     const PairBaselines& baselines);

}  // namespace longspan
