// The losses of rollouts against their formulas, token by token in double.
#include "longspan/objectives/policy.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

using Doubles = std::vector<double>;

/// Three rollouts of 1, 4 and 6 labels.
struct Labels {
  std::vector<int64_t> documents;
  Doubles logprobs, old, reference, sampler, advantages, chosen;

  int64_t count(int64_t document) const { return std::ranges::count(documents, document); }
};

Labels random_labels(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Labels labels;
  labels.documents = {0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2};
  const Doubles of_document{normal(random), normal(random), normal(random)};
  for (const int64_t document : labels.documents) {
    const double p = -2 - std::abs(normal(random));
    labels.logprobs.push_back(p);
    labels.old.push_back(p + 0.3 * normal(random));
    labels.reference.push_back(p + 0.5 * normal(random));
    labels.sampler.push_back(labels.old.back() + 0.4 * normal(random));
    labels.advantages.push_back(of_document[document]);
    labels.chosen.push_back(labels.chosen.size() % 3 == 1 ? 0 : 1);
  }
  return labels;
}

double plain_kl(double p, double reference, KlEstimator estimator) {
  const double d = p - reference;
  if (estimator == KlEstimator::kFirst) return d;
  return estimator == KlEstimator::kSecond ? d * d / 2 : std::exp(-d) + d - 1;
}

/// -min(...) or -factor A log p. `held`: the ratio in factors without gradient.
double plain_surrogate(double ratio, double held, double advantage, double p,
                       const PolicyOptions& options) {
  const double low = 1 - options.epsilon_low, high = 1 + options.epsilon_high;
  switch (options.loss.kind.use) {
    case RatioUse::kWeight:
      return -std::min(held, options.epsilon_high) * advantage * p;
    case RatioUse::kRangeWeight:
      return -std::clamp(held, low, high) * advantage * p;
    case RatioUse::kClipped:
      break;
  }
  const double bounded = options.delta ? std::min(ratio, *options.delta) : ratio;
  return -std::min(bounded * advantage, std::clamp(ratio, low, high) * advantage);
}

/// Sums over all labels.
struct Plain {
  double loss = 0, kl = 0, mismatch = 0, correction = 0;
};

/// The formulas, rollout by rollout. `p`: the policy's log-probabilities where the loss has a
/// gradient; elsewhere labels.logprobs.
Plain plain_terms(const Labels& labels, const Doubles& p, const PolicyOptions& options) {
  const PolicyLoss& loss = options.loss;
  Plain plain;
  for (int64_t document = 0; document < 3; ++document) {
    std::vector<size_t> tokens;
    for (size_t i = 0; i < p.size(); ++i) {
      if (labels.documents[i] == document) tokens.push_back(i);
    }
    const auto n = static_cast<double>(tokens.size());
    const auto ratio_of = [&](const Doubles& above, const Doubles& below, size_t token,
                              RatioLevel level) {
      if (level == RatioLevel::kToken) return std::exp(above[token] - below[token]);
      double sum = 0;
      for (const size_t i : tokens) sum += above[i] - below[i];
      return std::exp(level == RatioLevel::kSequenceMean ? sum / n : sum);
    };
    double weight = 1;
    if (loss.kind.mean == PolicyMean::kOfSequences) weight = 1 / n;
    if (loss.kind.mean == PolicyMean::kOfFixedLength) {
      weight = 1 / static_cast<double>(options.fixed_length);
    }
    for (const size_t i : tokens) {
      const double ratio = ratio_of(p, labels.old, i, loss.level),
                   held = ratio_of(labels.logprobs, labels.old, i, loss.level);
      double factor = 1;
      if (loss.correction.corrects) {
        factor =
            ratio_of(labels.old, labels.sampler, i,
                     loss.correction.of_sequences ? RatioLevel::kSequence : RatioLevel::kToken);
        const double least = options.min_ratio.value_or(0);
        const bool is_within = factor >= least && factor <= options.max_ratio;
        if (!is_within) {
          factor = loss.correction.masks ? 0 : std::clamp(factor, least, options.max_ratio);
        }
        plain.correction += factor;
        plain.mismatch += std::abs(labels.old[i] - labels.sampler[i]);
      }
      double own = plain_surrogate(ratio, held, labels.advantages[i], p[i], options) * factor *
                   labels.chosen[i];
      if (loss.kind.mean == PolicyMean::kOfSums) own /= n;  // each label has the rollout's loss
      const double kl = plain_kl(p[i], labels.reference[i], loss.kl);
      const bool corrects = options.corrects_kl && !loss.kl_in_reward;
      if (!loss.kl_in_reward) own += options.beta * kl * (corrects ? ratio : 1);
      plain.loss += weight * own;
      plain.kl += corrects ? kl * held : kl;
    }
  }
  return plain;
}

/// Compares values and derivatives. Returns whether ratios were clipped.
struct Clipped {
  bool low, high;
};
Clipped check_terms(const Labels& labels, const PolicyOptions& options) {
  const auto tensor = [](const Doubles& values) { return at::tensor(values, at::kDouble); };
  PolicyRow row{.logprobs_L = tensor(labels.logprobs).requires_grad_(true),
                .old_L = tensor(labels.old),
                .reference_L = tensor(labels.reference),
                .advantages_L = tensor(labels.advantages),
                .chosen_L = tensor(labels.chosen),
                .documents_L = at::tensor(labels.documents, at::kLong),
                .labels_D = at::tensor({1, 4, 6}, at::kDouble)};
  if (options.loss.correction.corrects) row.sampler_L = tensor(labels.sampler);
  const PolicyTerms terms = policy_terms(row, options, [](const at::Tensor& x) { return x; });
  torch::autograd::backward({terms.loss}, {});

  const Plain plain = plain_terms(labels, labels.logprobs, options);
  CHECK(terms.loss.item<double>() == doctest::Approx(plain.loss).epsilon(1e-12));
  CHECK(terms.kl.item<double>() == doctest::Approx(plain.kl).epsilon(1e-12));
  if (options.loss.correction.corrects) {
    CHECK(terms.mismatch.item<double>() == doctest::Approx(plain.mismatch).epsilon(1e-12));
    CHECK(terms.correction.item<double>() == doctest::Approx(plain.correction).epsilon(1e-12));
  }
  // The error of a difference of steps h is about h^2 + epsilon / h.
  constexpr double h = 1e-5;
  for (size_t i = 0; i < labels.logprobs.size(); ++i) {
    Doubles above = labels.logprobs, below = labels.logprobs;
    above[i] += h;
    below[i] -= h;
    const double slope =
        (plain_terms(labels, above, options).loss - plain_terms(labels, below, options).loss) /
        (2 * h);
    CHECK(row.logprobs_L.grad()[static_cast<int64_t>(i)].item<double>() ==
          doctest::Approx(slope).epsilon(1e-8));
  }
  return {terms.clipped_low.item<double>() > 0, terms.clipped_high.item<double>() > 0};
}

}  // namespace

TEST_CASE("policy: every loss equals its formula, in value and derivatives") {
  for (const PolicyLossKind& kind : kPolicyLosses) {
    Clipped any{};
    unsigned seed = 0;
    for (const std::string_view correction : kCorrectionNames) {
      for (const std::string_view estimator : kKlEstimatorNames) {
        for (const bool second : {false, true}) {
          PolicySettings settings;
          settings.loss_type = kind.name;
          settings.importance_sampling_correction = correction;
          settings.kl_estimator = estimator;
          settings.kl_in_reward = seed % 5 == 4;
          PolicyOptions options{.loss = policy_loss_of(settings),
                                .epsilon_low = 0.1,
                                .epsilon_high = kind.use == RatioUse::kWeight ? 1.1 : 0.15,
                                .beta = 0.3,
                                .corrects_kl = second,
                                .max_ratio = 1.4,
                                .fixed_length = 7};
          if (second) options.delta = 1.25;
          if (seed % 2 == 1) options.min_ratio = 0.8;
          CAPTURE(fmt::format("{}, {}, {}, KL in the reward {}, delta {}, least {}", kind.name,
                              correction, estimator, options.loss.kl_in_reward,
                              options.delta.value_or(0), options.min_ratio.value_or(0)));
          const Clipped clipped = check_terms(random_labels(seed++), options);
          any.low |= clipped.low;
          any.high |= clipped.high;
        }
      }
    }
    CHECK(any.high);
    CHECK(any.low == (kind.use != RatioUse::kWeight));
  }
}

TEST_CASE("policy: the ratio of rollouts, for each loss that clips it") {
  for (const char* name : {"grpo", "dapo", "dr_grpo", "reinforce_plus_plus_baseline"}) {
    PolicySettings settings;
    settings.loss_type = name;
    settings.importance_sampling_level = "sequence";
    const PolicyOptions options{.loss = policy_loss_of(settings), .beta = 0.1, .fixed_length = 5};
    CAPTURE(name);
    for (const unsigned seed : {1U, 2U, 3U}) check_terms(random_labels(seed), options);
  }
}

}  // namespace longspan
