#include "longspan/generation/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "longspan/base/user_error.h"
#include "longspan/kernels/dropout.h"

namespace longspan {
namespace {

void penalize(std::span<float> logits, std::span<const int32_t> before, double penalty) {
  std::vector<int32_t> once(before.begin(), before.end());
  std::ranges::sort(once);
  once.erase(std::ranges::unique(once).begin(), once.end());
  for (const int32_t token : once) {
    float& logit = logits[token];
    logit = static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
  }
}

/// Throws UserError for a NaN, which breaks sorting, for +inf, and where all logits are -inf.
void require_finite(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  bool any = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == kInfinity) {
      any = false;
      break;
    }
    any = any || logit > -kInfinity;
  }
  if (any) return;
  throw UserError(
      "the model computes no numbers (NaN or infinity) for the next token, so it has no answer: "
      "its training diverged, or its weights are damaged or overflow. Take an earlier checkpoint, "
      "train with a smaller learning_rate, or try infer_dtype=fp32.");
}

}  // namespace

int32_t Sampler::pick(std::span<float> logits, std::span<const int32_t> before) {
  if (options_.repetition_penalty != 1.0) penalize(logits, before, options_.repetition_penalty);
  require_finite(logits);
  const auto likeliest = std::ranges::max_element(logits);
  if (!options_.do_sample) return static_cast<int32_t>(likeliest - logits.begin());

  // Sorts from the likeliest token on, equal ones by their ids.
  const int64_t V = std::ssize(logits);
  const int64_t k = options_.top_k > 0 ? std::min(options_.top_k, V) : V;
  order_.resize(V);
  std::iota(order_.begin(), order_.end(), 0);
  std::partial_sort(order_.begin(), order_.begin() + k, order_.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  weights_.resize(k);
  const double largest = logits[order_[0]];
  for (int64_t i = 0; i < k; ++i) {
    weights_[i] = std::exp((logits[order_[i]] - largest) / options_.temperature);
  }
  double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  // Keeps tokens until those before hold top_p of the probability.
  int64_t kept = 0;
  double held = 0.0;
  while (kept < k && (kept == 0 || held < options_.top_p * sum)) held += weights_[kept++];
  sum = held;
  const double u = static_cast<double>(mix_seed(seed_, drawn_++) >> 11) * 0x1p-53;
  double until = 0.0;
  for (int64_t i = 0; i < kept; ++i) {
    until += weights_[i];
    if (u * sum < until) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace longspan
