// A row of a data set as it was read from its file. No torch.
#pragma once

#include <cstddef>
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
};
/// The role's name in messages to the user: "system", "user", "assistant", "observation".
std::string name_of(Role role);
/// Does an answer follow such a message?
constexpr bool is_question(Role role) { return role == Role::kUser || role == Role::kObservation; }
/// Is such a message an answer, which can be trained?
constexpr bool is_answer(Role role) { return role == Role::kAssistant; }

/// A call of a tool.
struct FunctionCall {
  std::string name;
  std::string arguments;  // JSON, written as Python's json.dumps(ensure_ascii=False) writes it
  std::string id = {};    // empty: the row gives none
};

/// One message of a conversation.
struct Message {
  Role role;
  std::string content;
  std::string thoughts = {};             // of an answer: reasoning that comes before the content
  std::vector<FunctionCall> calls = {};  // of an answer: calls that come after the content
  bool is_trained = true;                // false where the row asks for no labels
  std::string name = {}, call_id = {};   // of a tool's result: the tool, and the id of the call
};

/// True where a message says nothing.
inline bool is_empty(const Message& message) {
  return message.content.empty() && message.thoughts.empty() && message.calls.empty();
}

/// The first message that breaks the order of a chat: a system message, if any; then each answer
/// behind one message of the user, or behind results of tools, of which several may stand in a row.
/// nullopt where none does.
struct OutOfTurn {
  size_t index;
  bool answer_is_due;  // else a question is
};
std::optional<OutOfTurn> first_out_of_turn(const std::vector<Message>& messages);

/// One row as read from a file, before tokenization. pt: one user message, the text. sft, kto: a
/// conversation that ends with an answer. dpo, rm: the same; the last message is the chosen answer.
struct Conversation {
  std::vector<Message> messages;
  std::string source;               // "file, row 17", for messages
  std::optional<Message> rejected;  // dpo, rm: the other answer
  bool desirable = true;            // kto: the verdict
  std::string tools = {};           // JSON list of the tools that can be called; empty: none
};

}  // namespace longspan
