#include "longspan/data/conversation.h"

#include <algorithm>
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

std::vector<TagPlace> tags_in(std::string_view text) {
  std::vector<TagPlace> tags;
  size_t at = 0;
  while (true) {
    const size_t image = text.find(kImageTag, at), video = text.find(kVideoTag, at);
    if (image == text.npos && video == text.npos) return tags;
    const bool is_video = video < image;
    tags.push_back({std::min(image, video), (is_video ? kVideoTag : kImageTag).size(), is_video});
    at = tags.back().begin + tags.back().size;
  }
}

bool has_pictures(const Message& message) { return !message.pictures.empty(); }

bool has_pictures(const Conversation& row) {
  return std::ranges::any_of(row.messages,
                             [](const Message& message) { return has_pictures(message); }) ||
         (row.rejected && has_pictures(*row.rejected));
}

bool have_pictures(const std::vector<Conversation>& rows) {
  return std::ranges::any_of(rows, [](const Conversation& row) { return has_pictures(row); });
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
