// Reward functions of rollouts. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/rollouts/whole_match.h"

namespace longspan {

struct PolicySettings;

/// An answer with the data that reward functions read.
struct JudgedAnswer {
  std::string prompt, answer, solution;    // texts without special tokens
  int64_t num_tokens = 0;                  // of the answer, with its end token
  bool is_truncated = false;               // ended by its length limit
  std::optional<double> environment = {};  // the environment's reward
};

/// The names of reward functions, in the order of the help:
///   exact_match  1 if the answer equals the solution, both without white space around, else 0
///   number       1 if the last number of the answer equals the last number of the solution, else 0
///   length       -(tokens of the answer) / max_completion_length
///   command      of reward_command: the command reads a JSON line for each answer, with the keys
///                prompt, completion, solution, num_tokens and truncated, and writes a JSON line
///                {"reward": NUMBER} for each, in the same order
///   format       1 if the regular expression reward_format matches the whole answer, else 0
///   http         of the service at reward_url: it gets a POST of a JSON list of objects with the
///                keys of `command`, and answers with a JSON list of numbers, or {"rewards":
///                [...]}, in the same order
///   environment  the reward by environment_command (rollouts/environment.h)
std::vector<std::string_view> names_of_rewards();

/// Reward functions with weights.
class Rewards {
 public:
  /// Throws UserError: an unknown or repeated name, no name, weights that are not one number for
  /// each name, a function without its key (command: reward_command) or a key without its function,
  /// a wrong regular expression.
  explicit Rewards(const PolicySettings& settings);

  /// Returns the rewards of each answer by name. Throws UserError, with the function's name, if a
  /// function fails, does not end in time, or returns another number of rewards or a reward that is
  /// not finite. nullopt: `stops` returned true while a function was running.
  std::optional<std::vector<std::map<std::string, double>>> of(
      const std::vector<JudgedAnswer>& answers, const std::function<bool()>& stops = {}) const;
  const std::map<std::string, double>& weights() const { return weights_; }

 private:
  std::map<std::string, double> weights_;
  std::string command_, url_;
  std::optional<WholeMatch> format_;
  int64_t timeout_, max_length_;
};

/// Returns the last number in a text; NaN: the text has none. Commas between digits are left out.
double last_number(std::string_view text);

}  // namespace longspan
