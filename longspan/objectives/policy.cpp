#include "longspan/objectives/policy.h"

#include <ATen/ATen.h>

#include <limits>
#include <stdexcept>

namespace longspan {
namespace {

/// Sums and spreads numbers over the documents of a row.
class ByDocument {
 public:
  ByDocument(const PolicyRow& row, const SumOver& sum_over) : row_(row), sum_over_(sum_over) {}

  /// [L] -> [D], over all processes of the row.
  at::Tensor sum(const at::Tensor& x_L) const {
    return sum_over_(at::zeros_like(row_.labels_D).index_add(0, row_.documents_L, x_L));
  }
  /// [D] -> [L].
  at::Tensor spread(const at::Tensor& x_D) const { return x_D.index_select(0, row_.documents_L); }
  /// [L] -> [], over all processes of the row.
  at::Tensor total(const at::Tensor& x_L) const { return sum_over_(x_L.sum()); }

 private:
  const PolicyRow& row_;
  const SumOver& sum_over_;
};

/// Returns the loss of a token or a rollout from its ratio.
at::Tensor surrogate(const at::Tensor& ratio, const at::Tensor& advantages,
                     const at::Tensor& logprobs, const PolicyOptions& options) {
  const double low = 1 - options.epsilon_low, high = 1 + options.epsilon_high;
  switch (options.loss.kind.use) {
    case RatioUse::kClipped: {
      const at::Tensor bounded = options.delta ? ratio.clamp_max(*options.delta) : ratio;
      return at::minimum(bounded * advantages, ratio.clamp(low, high) * advantages).neg();
    }
    case RatioUse::kWeight:
      return ratio.clamp_max(options.epsilon_high).detach().neg() * advantages * logprobs;
    case RatioUse::kRangeWeight:
      return ratio.clamp(low, high).detach().neg() * advantages * logprobs;
  }
  throw std::logic_error("a use of no kind");
}

/// Returns the factor of each token that corrects the sampler's probabilities.
at::Tensor correction_of(const PolicyRow& row, const at::Tensor& old_L,
                         const PolicyOptions& options, const ByDocument& by_document) {
  const SamplerCorrection& correction = options.loss.correction;
  at::Tensor log_L = old_L - row.sampler_L;
  if (correction.of_sequences) log_L = by_document.spread(by_document.sum(log_L));
  const at::Tensor ratio_L = log_L.exp();
  const double least = options.min_ratio.value_or(-std::numeric_limits<double>::infinity());
  if (!correction.masks) return ratio_L.clamp(least, options.max_ratio);
  return at::where(ratio_L.ge(least).logical_and(ratio_L.le(options.max_ratio)), ratio_L, 0.0);
}

/// Returns the weight of each document's tokens in PolicyTerms::loss.
at::Tensor document_weights(const PolicyRow& row, const PolicyOptions& options) {
  switch (options.loss.kind.mean) {
    case PolicyMean::kOfSequences:
      return row.labels_D.clamp_min(1).reciprocal();
    case PolicyMean::kOfTokens:
    case PolicyMean::kOfSums:
      return at::ones_like(row.labels_D);
    case PolicyMean::kOfFixedLength:
      return at::full_like(row.labels_D, 1.0 / static_cast<double>(options.fixed_length));
  }
  throw std::logic_error("a mean of no kind");
}

}  // namespace

at::Tensor kl_estimate(const at::Tensor& logprobs, const at::Tensor& reference,
                       KlEstimator estimator) {
  const at::Tensor difference = logprobs - reference;
  switch (estimator) {
    case KlEstimator::kFirst:
      return difference;
    case KlEstimator::kSecond:
      return difference.square() / 2;
    case KlEstimator::kThird:
      return difference.neg().exp() + difference - 1;
  }
  throw std::logic_error("an estimator of no kind");
}

double policy_weight(PolicyMean mean, int64_t num_documents, int64_t num_labels) {
  return static_cast<double>(mean == PolicyMean::kOfTokens ? num_labels : num_documents);
}

PolicyTerms policy_terms(const PolicyRow& row, const PolicyOptions& options,
                         const SumOver& sum_over) {
  const ByDocument by_document(row, sum_over);
  const at::Tensor policy_L = row.logprobs_L, detached_L = policy_L.detach();
  const at::Tensor old_L = row.old_L.defined() ? row.old_L : detached_L;
  const at::Tensor log_ratio_L = policy_L - old_L;
  PolicyTerms terms;

  // Factors of the tokens' losses, without gradient.
  at::Tensor factor_L = row.chosen_L.defined() ? row.chosen_L : at::ones_like(row.advantages_L);
  if (row.sampler_L.defined()) {
    const at::Tensor ratio_L = correction_of(row, old_L, options, by_document);
    terms.mismatch = by_document.total((old_L - row.sampler_L).abs());
    terms.correction = by_document.total(ratio_L);
    factor_L = factor_L * ratio_L;
  }
  const at::Tensor weight_D = document_weights(row, options);

  // With a ratio of tokens, a token's loss reaches only its own log-probability, which is on this
  // process. With a ratio of whole rollouts, the tokens' factors are summed first, so that each
  // process has the whole loss as a function of its own labels.
  at::Tensor ratio_L, ratio_D;
  if (options.loss.level == RatioLevel::kToken) {
    ratio_L = log_ratio_L.exp();
    const at::Tensor losses_L = surrogate(ratio_L, row.advantages_L, policy_L, options) * factor_L;
    terms.loss = by_document.total(losses_L * by_document.spread(weight_D));
  } else {
    at::Tensor log_D = by_document.sum(log_ratio_L);
    const at::Tensor labels_D = row.labels_D.clamp_min(1);
    if (options.loss.level == RatioLevel::kSequenceMean) log_D = log_D / labels_D;
    ratio_D = log_D.exp();
    ratio_L = by_document.spread(ratio_D);
    const bool of_sums = options.loss.kind.mean == PolicyMean::kOfSums;
    const at::Tensor factor_D =
        of_sums ? by_document.sum(factor_L) / labels_D : by_document.sum(factor_L);
    const at::Tensor advantages_D = by_document.sum(row.advantages_L) / labels_D;
    if (options.loss.kind.use != RatioUse::kClipped) {
      throw std::logic_error("a ratio of rollouts weights no log-probabilities of tokens");
    }
    terms.loss =
        (surrogate(ratio_D, advantages_D, at::Tensor(), options) * factor_D * weight_D).sum();
  }

  if (row.reference_L.defined()) {
    const at::Tensor kl_L = kl_estimate(policy_L, row.reference_L, options.loss.kl);
    if (options.beta != 0 && !options.loss.kl_in_reward) {
      at::Tensor kl;
      if (!options.corrects_kl) {
        kl = by_document.total(kl_L * by_document.spread(weight_D));
      } else if (ratio_D.defined()) {
        kl = (ratio_D * by_document.sum(kl_L) * weight_D).sum();
      } else {
        kl = by_document.total(kl_L * ratio_L * by_document.spread(weight_D));
      }
      terms.loss = terms.loss + options.beta * kl;
    }
    // As in TRL, the metric is of the estimates in the loss.
    const bool corrected = options.corrects_kl && !options.loss.kl_in_reward;
    terms.kl = by_document.total(corrected ? (kl_L * ratio_L).detach() : kl_L.detach());
  }
  const at::Tensor used_L = ratio_L.detach();
  const bool absolute = options.loss.kind.use == RatioUse::kWeight;
  const double high = absolute ? options.epsilon_high : 1 + options.epsilon_high;
  const auto share = [&](const at::Tensor& clipped_L) {
    return by_document.total(clipped_L.to(at::kDouble));
  };
  terms.clipped_high = share(used_L.gt(high).logical_and(row.advantages_L.gt(0)));
  terms.clipped_low =
      absolute ? at::zeros_like(terms.clipped_high)
               : share(used_L.lt(1 - options.epsilon_low).logical_and(row.advantages_L.lt(0)));
  return terms;
}

}  // namespace longspan
