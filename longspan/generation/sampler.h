// Samples the next token. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

/// Names and meanings as in transformers' GenerationConfig.
struct SamplingOptions {
  bool do_sample = false;  // false: the likeliest token (greedy)
  double temperature = 1.0;
  int64_t top_k = 50;               // samples from the k likeliest tokens; 0: all
  double top_p = 1.0;               // the likeliest tokens with this total probability
  double repetition_penalty = 1.0;  // for tokens that occurred before (arXiv 1909.05858)
};

/// Draws the tokens of one answer. The same seed and logits give the same tokens on every machine.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, uint64_t seed) : options_(options), seed_(seed) {}

  /// Returns the next token's id. Changes `logits`. `before`: all tokens so far, including the
  /// prompt's. Applies penalty, temperature, top_k and top_p in this order, as transformers does.
  /// Throws UserError where a logit is NaN or +inf (a diverged model), or all are -inf.
  int32_t pick(std::span<float> logits, std::span<const int32_t> before);

 private:
  SamplingOptions options_;
  uint64_t seed_, drawn_ = 0;
  std::vector<int32_t> order_;
  std::vector<double> weights_;
};

}  // namespace longspan
