// Generates answers to several prompts at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "longspan/generation/cached_decoder.h"
#include "longspan/generation/sampler.h"

namespace longspan {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 1024;
  std::set<int32_t> end_tokens;
  uint64_t seed = 42;
  bool logprobs = false;  // computes Answer::logprobs
  /// Prompt i has the random numbers of the prompt first_number + i * number_step: the prompts are
  /// a part of all prompts.
  int64_t first_number = 0, number_step = 1;
};

enum class FinishReason {
  kStop,         // the model ended its answer
  kLength,       // max_new_tokens
  kContext,      // the model's longest row (max_position_embeddings)
  kInterrupted,  // go_on() returned false
};

struct Answer {
  std::vector<int32_t> tokens;  // without the end token
  FinishReason reason;
  std::optional<int32_t> end_token = {};  // of an answer with FinishReason::kStop
  /// log p of each token and of the end token, from the logits divided by the temperature, before
  /// top_k, top_p and repetition_penalty. Empty unless asked for.
  std::vector<double> logprobs = {};
};

/// Callbacks, with the prompt's number. Each may be empty.
struct GenerationListener {
  std::function<void(int64_t prompt, int32_t token)> token;
  std::function<void(int64_t prompt, Answer answer)> answer;
  std::function<bool()> go_on;
};

/// Answers all prompts, as many at a time as the decoder has sequences. When an answer ends, its
/// sequence gets the next prompt; a prefix of the prompt that the sequence already holds is not
/// read again. Each prompt has its own random numbers, so answers do not depend on the number of
/// prompts at a time. A prompt has at least one token and fewer than decoder.max_length(). A prompt
/// is given by its input_ids; a prompt with pictures also has all members that PictureRows::attach
/// sets. Throws UserError where pixels cannot be read.
void generate(CachedDecoder& decoder, const std::vector<Sample>& prompts,
              const GenerationOptions& options, const GenerationListener& listener);
/// The same for prompts without pictures.
void generate(CachedDecoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
              const GenerationOptions& options, const GenerationListener& listener);

}  // namespace longspan
