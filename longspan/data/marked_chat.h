// Marks around the texts of a chat, by which they are found in its rendering. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// A text of a message, without white space at its ends.
struct ChatText {
  enum Kind {
    kContent,
    kThoughts,
    kName,      // of a function that is called
    kKey,       // of its arguments
    kArgument,  // a text in them, or all of them as JSON text
  } kind;
  size_t message;
  std::string text;
};

/// A mark in a rendering: where it was, and whose it is.
struct MarkPlace {
  size_t byte;  // of the rendering without marks
  size_t text;  // of MarkedChat::texts
  bool is_end;
};

/// The messages of a chat as a template gets them, with a mark before and behind each text of some
/// messages. The content of an answer is divided at <think> and </think>, so that a template can
/// take its thoughts away.
class MarkedChat {
 public:
  /// messages: objects with role and, each if given, content, reasoning_content and tool_calls.
  /// Messages are marked where `marked` says so. A mark is a private-use character that occurs
  /// neither in the messages nor in `others`. Throws RowError where there are more texts than marks
  /// (32,767).
  MarkedChat(const nlohmann::ordered_json& messages, const std::vector<bool>& marked,
             std::string_view others);

  const nlohmann::ordered_json& messages() const { return messages_; }
  /// The texts of the marked messages.
  const std::vector<ChatText>& texts() const { return texts_; }
  /// Takes the marks out of a rendering. `places` gets them in the order of the text.
  std::string without_marks(std::string_view rendered, std::vector<MarkPlace>& places) const;

 private:
  std::string marked_text(std::string_view text, ChatText::Kind kind, size_t message);
  std::string marked_answer(std::string_view text, size_t message);
  nlohmann::ordered_json marked_arguments(const nlohmann::ordered_json& arguments, size_t message);
  uint32_t free_mark();

  nlohmann::ordered_json messages_;
  std::vector<ChatText> texts_;
  std::set<uint32_t> taken_;
  std::map<uint32_t, size_t> marks_;  // twice the number of the text, and one more behind it
  uint32_t next_;
};

/// A private-use character for each number, as text; none of them occurs in `others`.
std::vector<std::string> free_characters(size_t number, std::string_view others);

/// The text without white space at its ends, as Python's str.strip() leaves it.
std::string_view stripped(std::string_view text);

}  // namespace longspan
