// Answers to the questions of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/generation/generate.h"
#include "longspan/rollouts/waiting.h"

namespace longspan {

struct AskedPrompts {
  std::vector<std::vector<int32_t>> prompts;
  int64_t count;           // answers to each prompt
  int64_t policy_version;  // as update() returned it for these prompts
  uint64_t seed;
};

/// A sampler of a policy.
class AnswerSource {
 public:
  virtual ~AnswerSource() = default;

  /// Called once per batch of questions, before answers(). `policy_version`: number of updates of
  /// the policy so far. Returns the version of the policy that answers from now on. Collective.
  virtual int64_t update(int64_t policy_version) = 0;

  /// Returns the answers to all prompts, with the answers to one prompt next to each other. The
  /// result is valid on rank 0 only. nullopt: `waiting.stops` returned true. Collective unless
  /// is_of_rank_0().
  virtual std::optional<std::vector<Answer>> answers(const AskedPrompts& asked,
                                                     const Waiting& waiting) = 0;

  /// Whether answers have log-probabilities.
  virtual bool has_logprobs() const = 0;

  /// True if answers() is called on rank 0 alone, from any thread. The answers then depend on more
  /// than the parameters and the seed, and a resumed run cannot repeat them.
  virtual bool is_of_rank_0() const = 0;
};

}  // namespace longspan
