// Prompts -> answers, several at a time.
#pragma once

#include <cstdint>
#include <functional>
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
};

enum class FinishReason {
  kStop,         // the model ended its answer
  kLength,       // max_new_tokens
  kContext,      // the model takes no longer rows (max_position_embeddings)
  kInterrupted,  // go_on() said no
};

struct Answer {
  std::vector<int32_t> tokens;  // without the one that ended it
  FinishReason reason;
};

/// Who is told, by the number of the prompt; each may be empty.
struct GenerationListener {
  std::function<void(int64_t prompt, int32_t token)> token;
  std::function<void(int64_t prompt, Answer answer)> answer;
  std::function<bool()> go_on;
};

/// Answers all prompts, as many at a time as the decoder has sequences; when an answer ends the
/// next prompt takes its place. What a place still knows of a prompt's beginning is not read again.
/// Each prompt has random numbers of its own, so that answers do not depend on how many are made at
/// a time. Prompts have at least one token and fewer than decoder.max_length().
void generate(CachedDecoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
              const GenerationOptions& options, const GenerationListener& listener);

}  // namespace longspan
