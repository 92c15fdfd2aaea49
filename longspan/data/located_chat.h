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

/// Renders messages by a chat template, with or without a generation prompt. Throws RowError if the
/// template refuses the messages.
using RenderMessages =
    std::function<RenderedChat(const nlohmann::ordered_json& messages, bool generation_prompt)>;

/// A rendered chat with the places of its texts. Marks in the messages give the places. After
/// removal of the marks, a marked rendering must equal the plain rendering. Messages whose text the
/// template changes or compares get no marks; the places of their texts are found by search.
class LocatedChat {
 public:
  /// Throws RowError, whose message begins with `place`, if the template refuses the messages, does
  /// not print a message's content unchanged, or prints an answer twice or out of order.
  LocatedChat(RenderMessages render, const nlohmann::ordered_json& messages, bool generation_prompt,
              const std::string& place);

  const std::string& text() const { return plain_.text; }
  /// Spans marked by {% generation %}.
  const std::vector<GenerationSpan>& generation() const { return plain_.generation; }

  /// The range of bytes of text() that contains the texts of a message. nullopt: the message has no
  /// text, or only thoughts that are not printed.
  struct Place {
    size_t begin, end;
  };
  const std::optional<Place>& place_of(size_t message) const { return places_[message]; }
  /// Returns the bytes from the end of the earlier messages' texts to the beginning of the later
  /// messages' texts.
  Place surroundings_of(size_t message) const;
  /// True if the rendering has all names, keys and texts of the message's calls, and no key in the
  /// form of a Python dict. (A template that expects JSON text prints an object as a Python dict.)
  /// False if the message has no marks.
  bool prints_calls(size_t message) const;
  bool is_marked(size_t message) const { return is_marked_[message]; }
  /// Returns the printed text around the texts of a message.
  std::string text_around(size_t message) const;
  /// True if the message has thoughts that the rendering does not have.
  bool lost_thoughts(size_t message) const { return lost_thoughts_[message]; }

  /// Returns the first byte of each answer: the length of the common prefix of the rendering and
  /// the prompt (the earlier messages with a generation prompt). Throws RowError if a prompt and
  /// the rendering already differ within the earlier messages. `answers`: ascending. The work is
  /// linear in the chat. For a chat of more than kMostWholePrompts answers, prompts leave out
  /// messages in the middle and of long texts, if some whole prompts give the same results.
  std::vector<size_t> begins_of_answers(const std::vector<size_t>& answers) const;
  /// Returns the text that the template prints after each answer in a chat that ends with this
  /// answer. `answers`: as above.
  std::vector<std::string> endings_alone(const std::vector<size_t>& answers) const;

  static constexpr size_t kMostWholePrompts = 32;

 private:
  enum class Prefix { kWhole, kShort };
  size_t begin_of_answer(size_t message, Prefix prefix) const;
  std::string ending_alone(size_t message, Prefix prefix) const;
  template <typename Result>
  std::vector<Result> by_short_prefixes(
      const std::vector<size_t>& answers,
      const std::function<Result(size_t message, Prefix prefix)>& find) const;
  nlohmann::ordered_json messages_before(size_t end, Prefix prefix) const;
  bool mark(const std::vector<bool>& marked);
  void mark_most();
  void find_marked_texts();
  void search_for_texts();
  void find_neighbours();
  void search_for_parts(size_t message, size_t& from);  // for an unmarked list of parts
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
  std::vector<std::vector<size_t>> marks_of_;  // by message: indices in marks_
  std::vector<std::optional<Place>> places_;
  /// By message: the places of the texts before and after, where all messages are printed in order;
  /// otherwise empty.
  std::vector<Place> surroundings_;
  std::vector<bool> lost_thoughts_;
};

}  // namespace longspan
