// A row of a data set as it was read from its file. No torch.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// One turn. role: system | user | assistant | observation | function.
struct Message {
  std::string role;
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
