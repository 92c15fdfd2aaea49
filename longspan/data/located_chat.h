// Finds the texts of each message in a rendered chat. No torch.
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

/// Renders messages by a chat template, with or without a generation prompt. Throws RowError where
/// the template refuses them.
using RenderMessages =
    std::function<RenderedChat(const nlohmann::ordered_json& messages, bool generation_prompt)>;

/// A rendered chat with the places of its texts. They are found by marks: without the marks, a
/// marked rendering must equal the plain one. Messages whose text the template changes or compares
/// get no marks, and their texts are searched for.
class LocatedChat {
 public:
  /// Throws RowError, beginning with `place`, where the template refuses the messages, does not
  /// print a message's content unchanged, or prints an answer twice or out of order.
  LocatedChat(RenderMessages render, const nlohmann::ordered_json& messages, bool generation_prompt,
              const std::string& place);

  const std::string& text() const { return plain_.text; }
  /// Spans marked by {% generation %}.
  const std::vector<GenerationSpan>& generation() const { return plain_.generation; }

  /// Bytes of text() with the texts of a message. nullopt: the message has no text, or only
  /// thoughts that are not printed.
  struct Place {
    size_t begin, end;
  };
  const std::optional<Place>& place_of(size_t message) const { return places_[message]; }
  /// Returns the bytes from the end of the earlier messages' texts to the beginning of the later
  /// ones'.
  Place surroundings_of(size_t message) const;
  /// Whether all names, keys and texts of a message's calls are printed, with no key in the form of
  /// a Python dict (which a template prints that expects JSON text). False where the message has no
  /// marks.
  bool prints_calls(size_t message) const;
  bool is_marked(size_t message) const { return is_marked_[message]; }
  /// Returns the printed text around the texts of a message.
  std::string text_around(size_t message) const;
  /// Whether thoughts of the message are not printed.
  bool lost_thoughts(size_t message) const { return lost_thoughts_[message]; }

  /// Returns the first byte of an answer: after the generation prompt's text, as far as the
  /// rendering has the same text there. Throws RowError where the two have nothing in common.
  size_t begin_of_answer(size_t message) const;
  /// Returns the text that follows an answer where the chat ends with it.
  std::string ending_alone(size_t message) const;

 private:
  bool mark(const std::vector<bool>& marked);
  void mark_most();
  void find_marked_texts();
  void search_for_texts();
  void search_for_parts(size_t message, size_t& from);  // of an unmarked list of parts
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
