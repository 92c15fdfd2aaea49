// The environment of conversations with several turns: a user's process. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/rollouts/child_process.h"

namespace longspan {

/// Why a conversation ends without a further answer.
enum class EndOfTurns {
  kNone,       // the environment decides
  kTruncated,  // the last answer ended by max_completion_length
  kTurns,      // max_turns answers
  kLength,     // no room for an observation and an answer within cutoff_len
};

/// An answer of the policy, for the environment.
struct EnvironmentAnswer {
  std::string id;                // of the conversation, unique in a run
  std::string prompt, solution;  // texts of the data set
  int64_t turn = 0;              // number of earlier answers in the conversation
  std::string answer;            // text without special tokens
  EndOfTurns end = EndOfTurns::kNone;
};

/// The next message of a conversation, or the reward of the whole conversation.
struct EnvironmentReply {
  std::string observation, role;  // role: user or tool
  std::optional<double> reward;   // set: the conversation has ended
};

/// Runs the command of environment_command, once for a run. For each answer the command gets a line
///
///   {"id": "3.0.1", "turn": 0, "prompt": "...", "solution": "...", "answer": "...", "end": null}
///
/// and writes a line, in the same order,
///
///   {"observation": "...", "role": "tool"}    the conversation goes on (role: tool or user)
///   {"reward": 1.0}                           the conversation has ended
///
/// An answer with an `end` ("truncated", "max_turns" or "cutoff_len") is the last answer of its
/// conversation, and requires a reward.
class Environment {
 public:
  /// `timeout`: seconds for the replies to all answers of a turn. Throws UserError if the command
  /// cannot be started.
  Environment(const std::string& command, int64_t timeout);
  /// Ends the command's standard input, and kills the command if it still runs after 2 s.
  ~Environment();

  /// Returns a reply to each answer. Throws UserError, with the end of the command's standard
  /// error, if the command ends, takes too long, or writes anything else than the replies. nullopt:
  /// `stops` returned true.
  std::optional<std::vector<EnvironmentReply>> replies(
      const std::vector<EnvironmentAnswer>& answers, const std::function<bool()>& stops);

 private:
  [[noreturn]] void fail(const std::string& problem);

  std::string command_;
  int64_t timeout_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace longspan
