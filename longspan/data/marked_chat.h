// Marks around the texts of a chat. The marks locate the texts in the chat's rendering. No torch.
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
    kName,      // the name of a called function
    kKey,       // a key of the arguments
    kArgument,  // a text in the arguments, or all arguments as JSON text
  } kind;
  size_t message;
  std::string text;
};

/// A mark in a rendering.
struct MarkPlace {
  size_t byte;  // in the rendering without marks
  size_t text;  // index in MarkedChat::texts
  bool is_end;
};

/// Messages for a template, with marks before and after each text of some messages. An answer's
/// content is split at <think> and </think>, because a template may drop the answer's thoughts.
class MarkedChat {
 public:
  /// messages: objects with role and optionally content (text, or a list of parts),
  /// reasoning_content and tool_calls. `marked`: the messages that get marks. A mark is a
  /// private-use character that occurs neither in the messages nor in `others`. Throws RowError if
  /// there are more texts than marks (32,767).
  MarkedChat(const nlohmann::ordered_json& messages, const std::vector<bool>& marked,
             std::string_view others);

  const nlohmann::ordered_json& messages() const { return messages_; }
  /// Returns the texts of the marked messages.
  const std::vector<ChatText>& texts() const { return texts_; }
  /// Removes the marks from a rendering. `places`: receives the marks' places, in the order of the
  /// rendering.
  std::string without_marks(std::string_view rendered, std::vector<MarkPlace>& places) const;

 private:
  std::string marked_text(std::string_view text, ChatText::Kind kind, size_t message);
  std::string marked_answer(std::string_view text, size_t message);
  nlohmann::ordered_json marked_arguments(const nlohmann::ordered_json& arguments, size_t message);
  uint32_t free_mark();

  nlohmann::ordered_json messages_;
  std::vector<ChatText> texts_;
  std::set<uint32_t> taken_;
  std::map<uint32_t, size_t> marks_;  // mark -> twice the text's index, plus 1 for the end
  uint32_t next_;
};

/// Returns `number` private-use characters, as text, that do not occur in `others`.
std::vector<std::string> free_characters(size_t number, std::string_view others);

/// Returns the text without white space at both ends, as Python's str.strip() does.
std::string_view stripped(std::string_view text);

/// Returns both ends of a long text, about 500 bytes each, cut at UTF-8 characters.
std::string ends_of(const std::string& text);

}  // namespace longspan
