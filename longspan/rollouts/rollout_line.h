// A rollout as a line of JSON (docs/rollouts.md). No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "longspan/input/numbers.h"
#include "longspan/rollouts/rollout.h"

namespace longspan {

class Tokenizer;
class TurnEncoder;

/// Requirements for the rollouts of a file, and the encoder of texts.
struct RolloutRules {
  int64_t vocab_size = kMostIndexed;  // number of embeddings of the model
  bool needs_reward = true;           // a reward or an advantage; false: reward functions follow
  bool sums_rewards = true;           // without `reward`, the sum of `rewards` is the reward
  /// Encode `prompt` and `completion`. Null: only token ids are accepted.
  const Tokenizer* tokenizer = nullptr;
  const TurnEncoder* turns = nullptr;
};

/// Parses a line of a file. Rollout::source is "FILE, line NUMBER". Throws UserError, which begins
/// with this place: broken JSON, an unknown field or a field given twice, a value of another type,
/// contradictions, texts that the chat template refuses, and the cases of check_rollout(). The
/// links to other rollouts are not checked (check_links).
Rollout parse_rollout(std::string_view line, const std::string& path, int64_t number,
                      const RolloutRules& rules);

/// Returns a line of JSON, without a line feed. parse_rollout() reads the same rollout from the
/// line. Throws RowError in the cases of check_rollout(), since JSON has no NaN.
std::string write_rollout(const Rollout& rollout);

}  // namespace longspan
