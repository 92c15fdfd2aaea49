// Conversations of the policy with an environment, turn after turn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/data/turns.h"
#include "longspan/liveness/notices.h"
#include "longspan/rollouts/environment.h"
#include "longspan/rollouts/rollout.h"
#include "longspan/settings/policy_settings.h"
#include "longspan/text/tokenizer.h"
#include "longspan/train/answer_source.h"

namespace longspan {

/// A question of the data set that gets several answers.
struct AskedQuestion {
  std::string name;  // unique in a run
  std::vector<int32_t> prompt;
  std::string solution;
};

/// A conversation that has ended.
struct HeldConversation {
  Rollout rollout;               // without group and reward
  std::string answer;            // the text of the last answer
  std::optional<double> reward;  // by the environment; nullopt: none
};

class Conversations {
 public:
  struct Parts {
    const PolicySettings& policy;
    AnswerSource& source;
    const Tokenizer& tokenizer;
    const TurnEncoder& encoder;  // of observations
    int64_t cutoff_len;          // most tokens of a conversation
    const Group& world;
    Notices& notices;
  };
  /// Starts the environment on rank 0, if the run has one. All parts must outlive this object.
  /// Throws UserError.
  explicit Conversations(Parts parts);

  /// `policy_version`: as AnswerSource::update() returned it.
  /// Holds num_generations conversations about each question. In the result, the conversations
  /// about one question are next to each other. Without an environment, a conversation has one
  /// answer. The result is valid on rank 0 only. nullopt: `waiting.stops` returned true. Throws
  /// UserError. Collective unless AnswerSource::is_of_rank_0().
  std::optional<std::vector<HeldConversation>> hold(const std::vector<AskedQuestion>& questions,
                                                    int64_t policy_version, uint64_t seed,
                                                    const Waiting& waiting);

 private:
  /// A conversation that has not ended.
  struct Open {
    HeldConversation held;
    const AskedQuestion* question;
    std::string name;
    bool is_over = false;
  };
  void add_answer(Open& open, const Answer& answer) const;
  /// Sends the last answers to the environment, adds the environment's observations to the
  /// conversations, and returns the indices of the conversations that continue. `turn`: answers
  /// before the last one. nullopt: `waiting.stops` returned true.
  std::optional<std::vector<size_t>> react(std::vector<Open>& all, int64_t turn,
                                           const Waiting& waiting);
  /// As react(), but returns the tokens of these conversations, on all ranks that take part.
  std::optional<std::vector<std::vector<int32_t>>> next_prompts(std::vector<Open>& all,
                                                                int64_t turn,
                                                                const Waiting& waiting,
                                                                std::vector<size_t>& going_on);
  EndOfTurns end_of(const Open& open, int64_t turn) const;

  Parts parts_;
  std::optional<Environment> environment_;  // on rank 0
};

}  // namespace longspan
