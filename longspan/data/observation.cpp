#include "longspan/data/observation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "longspan/base/user_error.h"

namespace longspan {

std::vector<int32_t> observation_tokens(const TurnEncoder& encoder, Role role,
                                        const std::string& content, int32_t end_token,
                                        const std::string& source) {
  // The tokens do not depend on the earlier messages, for which short ones stand.
  const Message user{.role = Role::kUser, .content = "a"},
      answer{.role = Role::kAssistant, .content = "b"},
      observation{.role = role, .content = content};
  const auto conversation = [&](std::vector<Message> messages) {
    Conversation row;
    row.messages = std::move(messages);
    row.source = source;
    return row;
  };
  const std::vector<Turn> turns = encoder.turns(conversation({user, answer, observation, answer}));
  if (turns.size() != 2) {
    throw UserError(fmt::format("{}: the chat template has no message of role {} after an answer",
                                source, name_of(role)));
  }
  // The tokens before an answer may differ between training and generation.
  const std::vector<int32_t> asked = encoder.question(conversation({user}));
  const std::vector<int32_t> trained = encoder.turns(conversation({user, answer})).front().source;
  // The template's text between the end token and the message.
  const std::vector<int32_t>&answered = turns[0].target, ends = encoder.turn_ends();
  const auto end =
      std::ranges::find_first_of(answered.rbegin(), answered.rend(), ends.begin(), ends.end());
  std::vector<int32_t> tokens(end == answered.rend() ? answered.end() : end.base(), answered.end());
  tokens.insert(tokens.end(), turns[1].source.begin(), turns[1].source.end());
  // In templates without an end token, an answer ends with the marker of the next message.
  if (end == answered.rend() && !tokens.empty() &&
      std::ranges::find(ends, tokens.front()) != ends.end()) {
    if (tokens.front() != end_token) {
      throw UserError(fmt::format(
          "{}: the answer ended with the marker of another role than {}, which the message has; "
          "reply with the other role",
          source, name_of(role)));
    }
    tokens.erase(tokens.begin());
  }
  if (asked == trained) return tokens;
  if (asked.size() < trained.size() || !std::equal(trained.begin(), trained.end(), asked.begin())) {
    throw UserError(fmt::format(
        "{}: the chat template's text before an answer differs between training and generation",
        source));
  }
  tokens.insert(tokens.end(), asked.begin() + static_cast<std::ptrdiff_t>(trained.size()),
                asked.end());
  return tokens;
}

}  // namespace longspan
