// A row of a data set as it was read from its file. No torch.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// Who speaks in a message.
enum class Role {
  kSystem,
  kUser,
  kAssistant,
  kObservation,  ///< a tool, with its result
  kFunction,     ///< the assistant, who calls a tool
};
/// By which messages to the user and chat templates know it: "system", "user", "assistant",
/// "observation", "function".
std::string name_of(Role role);
/// Does an answer follow such a message?
constexpr bool is_question(Role role) { return role == Role::kUser || role == Role::kObservation; }
/// Is such a message an answer, which can be trained?
constexpr bool is_answer(Role role) { return role == Role::kAssistant || role == Role::kFunction; }

/// One message of a conversation.
struct Message {
  Role role;
  std::string content;
};

/// One row as read from a file, before tokenization. pt: one user message, the text. sft, kto: a
/// conversation that ends with an answer. dpo, rm: the same; the last message is the chosen answer.
struct Conversation {
  std::vector<Message> messages;
  std::string source;               // "file, row 17", for messages
  std::optional<Message> rejected;  // dpo, rm: the other answer
  bool desirable = true;            // kto: the verdict
};

}  // namespace longspan
