// Losses over pairs of answers, on their log-probabilities alone. B: pairs; all tensors fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/objectives/pair_loss.h"

namespace longspan {

struct PairOptions {
  PairLoss loss = PairLoss::kSigmoid;
  double beta = 0.1, label_smoothing = 0.0, simpo_gamma = 0.5;
  double sft_weight = 0.0;  // pref_ftx: of the chosen answer's mean token loss
};

/// Sums over the labels of each answer, and their numbers. References are undefined where the loss
/// has none.
struct PairScores {
  at::Tensor chosen_B, rejected_B, reference_chosen_B, reference_rejected_B;
  at::Tensor chosen_labels_B, rejected_labels_B;
};

/// The KL estimates of kto_pair (PairLossKind::has_baselines), over all pairs of a step: clamped
/// means of c and of r. `slope` is the mean over pairs of the derivative of a pair's loss by them
/// (0 where clamped), so that gradients flow through them though other pairs are in other rows.
/// Numbers where the scores are, for which no host waits: fp64, []; undefined for other losses.
struct PairBaselines {
  at::Tensor chosen, rejected, chosen_slope, rejected_slope;
};
/// Zeros of no pairs.
PairBaselines pair_baselines(const PairScores& all, const PairOptions& options);

struct PairTerms {
  at::Tensor losses_B;                              // differentiable
  at::Tensor chosen_rewards_B, rejected_rewards_B;  // implicit rewards, without gradient
  std::vector<at::Tensor> parts_B;                  // by PairLossKind::parts, without gradient
};

/// The loss of a batch is the mean of losses_B. `baselines` are looked at where the loss has some.
PairTerms pair_terms(const PairScores& scores, const PairOptions& options,
                     const PairBaselines& baselines);

}  // namespace longspan
