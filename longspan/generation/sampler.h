// Which token comes next. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

/// Names and meanings are those of transformers' GenerationConfig.
struct SamplingOptions {
  bool do_sample = false;  // else the likeliest token (greedy)
  double temperature = 1.0;
  int64_t top_k = 50;               // among the k likeliest; 0: all
  double top_p = 1.0;               // among the likeliest that hold this much probability together
  double repetition_penalty = 1.0;  // of tokens that came before (arXiv 1909.05858)
};

/// Draws the tokens of one answer: the same for a seed on every machine where logits are the same.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, uint64_t seed) : options_(options), seed_(seed) {}

  /// The next token's id. `logits` is changed. `before`: all tokens so far, the prompt's too. The
  /// order is transformers': penalty, temperature, top_k, top_p. Throws UserError: a logit is NaN
  /// or +infinity, as a model that diverged has them, or all are -infinity.
  int32_t pick(std::span<float> logits, std::span<const int32_t> before);

 private:
  SamplingOptions options_;
  uint64_t seed_, drawn_ = 0;
  std::vector<int32_t> order_;
  std::vector<double> weights_;
};

}  // namespace longspan
