// The loss of rollouts, from log-probabilities of their tokens. L: labels of this process's share
// of a row, D: documents (rollouts) of the row. All tensors are fp64, except indices.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "longspan/objectives/document_scores.h"
#include "longspan/registers/policy_loss.h"

namespace longspan {

struct PolicyOptions {
  PolicyLoss loss;
  double epsilon_low = 0.2, epsilon_high = 0.2;
  std::optional<double> delta = {};  // upper bound of r in the unclipped term; two-sided clipping
  double beta = 0.0;                 // weight of KL in the loss
  /// Multiplies the KL term by the ratio, so that the gradient of KL is unbiased for tokens that
  /// the old policy sampled (TRL's use_bias_correction_kl).
  bool corrects_kl = true;
  double max_ratio = 3.0;  // bounds of the sampler's correction
  std::optional<double> min_ratio = {};
  int64_t fixed_length = 0;  // PolicyMean::kOfFixedLength
};

/// The data of a row's rollouts. Tensors named _L have one element for each label of this process,
/// in row order. Tensors named _D are equal on all processes of the row.
struct PolicyRow {
  at::Tensor logprobs_L;        // of the policy; differentiable
  at::Tensor old_L = {};        // of the policy at the first update; undefined: logprobs_L
  at::Tensor reference_L = {};  // undefined: no reference
  at::Tensor sampler_L = {};    // of the sampler; undefined: no correction
  at::Tensor advantages_L;
  at::Tensor chosen_L = {};  // 1: has a loss, 0: left out; undefined: all have a loss
  at::Tensor documents_L;    // int64
  at::Tensor labels_D;       // number of labels
};

/// The row's loss and the sums of its metrics, over all processes of the row.
struct PolicyTerms {
  /// Sum over the row's rollouts; divided by the batch's total of policy_weight(), it is the row's
  /// contribution to the loss. Each process gets the gradient of its own labels.
  at::Tensor loss;
  // Sums over tokens, without gradient
  at::Tensor clipped_low, clipped_high, kl, mismatch, correction;
};

/// Returns the estimate of KL for each token. `logprobs`, `reference`: the same shape.
at::Tensor kl_estimate(const at::Tensor& logprobs, const at::Tensor& reference,
                       KlEstimator estimator);

/// Returns the contribution of a row to the denominator of the loss.
double policy_weight(PolicyMean mean, int64_t num_documents, int64_t num_labels);

/// If the ratio is of whole rollouts, advantages must be equal within a document, and the use must
/// be RatioUse::kClipped; otherwise throws std::logic_error. `sum_over`: sums over the processes of
/// the row; the backward is the identity. Collective.
PolicyTerms policy_terms(const PolicyRow& row, const PolicyOptions& options,
                         const SumOver& sum_over);

}  // namespace longspan
