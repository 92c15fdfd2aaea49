// Where a chat template prints the texts of each message. No torch.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/data/marked_chat.h"
#include "longspan/text/chat_template.h"

namespace longspan {

/// Renders messages by a chat template, with or without the generation prompt behind them. Throws
/// RowError where the template refuses them.
using RenderMessages =
    std::function<RenderedChat(const nlohmann::ordered_json& messages, bool generation_prompt)>;

/// A chat in one rendering. The texts are found by marks: a rendering with marks must be the plain
/// one once they are taken out. A message whose text is changed or compared by the template stays
/// without marks, and its text is searched for.
class LocatedChat {
 public:
  /// Throws RowError, which begins with `place`: the template refuses the messages; it does not
  /// print the content of a message as it is; it prints an answer twice or out of order.
  LocatedChat(RenderMessages render, const nlohmann::ordered_json& messages, bool generation_prompt,
              const std::string& place);

  const std::string& text() const { return plain_.text; }
  /// Spans that {% generation %} marks.
  const std::vector<GenerationSpan>& generation() const { return plain_.generation; }

  /// Where the texts of a message are: bytes of text(). nullopt: the message has none, or only
  /// thoughts that are not printed.
  struct Place {
    size_t begin, end;
  };
  const std::optional<Place>& place_of(size_t message) const { return places_[message]; }
  /// Bytes between the texts of the messages before and those behind.
  Place surroundings_of(size_t message) const;
  /// All names, keys and texts of a message's calls are printed, the keys not as Python writes
  /// those of a dict (which a template prints that wants JSON text). False where the message has no
  /// marks.
  bool prints_calls(size_t message) const;
  bool is_marked(size_t message) const { return is_marked_[message]; }
  /// The printed text around the texts of a message.
  std::string text_around(size_t message) const;
  /// Thoughts of the message are not printed.
  bool lost_thoughts(size_t message) const { return lost_thoughts_[message]; }

  /// The first byte of an answer: behind the text that the generation prompt puts before it, as far
  /// as the rendering has the same text there. Throws RowError where they have nothing in common.
  size_t begin_of_answer(size_t message) const;
  /// The text behind those of an answer where the chat ends with it.
  std::string ending_alone(size_t message) const;

 private:
  bool mark(const std::vector<bool>& marked);
  void mark_most();
  void find_marked_texts();
  void search_for_texts();
  void require_order() const;
  [[noreturn]] void fail(const std::string& problem) const;
  std::string name_of_message(size_t message) const;

  RenderMessages render_;
  nlohmann::ordered_json messages_;
  bool generation_prompt_;
  std::string source_;
  RenderedChat plain_;
  std::optional<MarkedChat> marked_;
  std::vector<bool> is_marked_;
  std::vector<MarkPlace> marks_;
  std::vector<std::optional<Place>> places_;
  std::vector<bool> lost_thoughts_;
};

}  // namespace longspan
