#include "longspan/data/conversation.h"

#include <stdexcept>

namespace longspan {

std::string name_of(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kObservation:
      return "observation";
  }
  throw std::logic_error("no such role");
}

std::optional<OutOfTurn> first_out_of_turn(const std::vector<Message>& messages) {
  const size_t first = !messages.empty() && messages[0].role == Role::kSystem ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    const bool answer_is_due = i > first && is_question(messages[i - 1].role);
    const bool is_further_result =
        answer_is_due && role == Role::kObservation && messages[i - 1].role == Role::kObservation;
    if (is_further_result || (answer_is_due ? is_answer(role) : is_question(role))) continue;
    return OutOfTurn{i, answer_is_due};
  }
  return std::nullopt;
}

}  // namespace longspan
