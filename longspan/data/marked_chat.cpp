#include "longspan/data/marked_chat.h"

#include <algorithm>
#include <optional>

#include "longspan/data/bad_rows.h"
#include "longspan/data/template_format.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

// Plane 15 of Unicode: private use, four bytes of UTF-8, of which the first is 0xF3.
constexpr uint32_t kFirstMark = 0xF0000, kLastMark = 0xFFFFD;
constexpr size_t kMarkBytes = 4;

std::string utf8_of(uint32_t mark) {
  return {static_cast<char>(0xF0 | (mark >> 18)), static_cast<char>(0x80 | ((mark >> 12) & 0x3F)),
          static_cast<char>(0x80 | ((mark >> 6) & 0x3F)), static_cast<char>(0x80 | (mark & 0x3F))};
}

/// Returns the character of plane 15 at the beginning of the text, if there is one.
std::optional<uint32_t> mark_at(std::string_view text) {
  if (text.size() < kMarkBytes || static_cast<unsigned char>(text[0]) != 0xF3) return std::nullopt;
  uint32_t mark = 3;
  for (size_t i = 1; i < kMarkBytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return std::nullopt;
    mark = (mark << 6) | (byte & 0x3F);
  }
  if (mark < kFirstMark || mark > kLastMark) return std::nullopt;
  return mark;
}

/// Returns the text's characters that could be marks.
std::set<uint32_t> marks_in(std::string_view text) {
  std::set<uint32_t> marks;
  for (size_t i = 0; (i = text.find('\xF3', i)) != std::string_view::npos; ++i) {
    if (const auto mark = mark_at(text.substr(i))) marks.insert(*mark);
  }
  return marks;
}

/// Non-ASCII white space that str.strip() removes.
constexpr std::string_view kWideSpaces[] = {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001",
                                            "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
                                            "\u2007", "\u2008", "\u2009", "\u200a", "\u2028",
                                            "\u2029", "\u202f", "\u205f", "\u3000"};

constexpr std::string_view kSpaces = " \t\n\v\f\r\x1c\x1d\x1e\x1f";

/// Returns the bytes of white space with which the text begins (or ends); 0: none.
size_t space_at_end(std::string_view text, bool front) {
  if (text.empty()) return 0;
  if (kSpaces.find(front ? text.front() : text.back()) != std::string_view::npos) return 1;
  for (const std::string_view space : kWideSpaces) {
    if (front ? text.starts_with(space) : text.ends_with(space)) return space.size();
  }
  return 0;
}

}  // namespace

std::string_view stripped(std::string_view text) {
  while (const size_t space = space_at_end(text, /*front=*/true)) text.remove_prefix(space);
  while (const size_t space = space_at_end(text, /*front=*/false)) text.remove_suffix(space);
  return text;
}

std::string ends_of(const std::string& text) {
  constexpr size_t kEnd = 500;
  const auto continues = [&](size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  if (text.size() <= 2 * kEnd) return text;
  size_t left = kEnd, right = text.size() - kEnd;
  while (left > 0 && continues(left)) --left;
  while (right < text.size() && continues(right)) ++right;
  return text.substr(0, left) + text.substr(right);
}

std::vector<std::string> free_characters(size_t number, std::string_view others) {
  const std::set<uint32_t> taken = marks_in(others);
  std::vector<std::string> characters;
  for (uint32_t mark = kFirstMark; mark <= kLastMark && characters.size() < number; ++mark) {
    if (!taken.contains(mark)) characters.push_back(utf8_of(mark));
  }
  if (characters.size() < number) throw RowError("a row has more than 65,534 tools");
  return characters;
}

MarkedChat::MarkedChat(const ordered_json& messages, const std::vector<bool>& marked,
                       std::string_view others)
    : messages_(messages), next_(kFirstMark) {
  taken_ = marks_in(messages.dump());
  taken_.merge(marks_in(others));
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (!marked[i]) continue;
    ordered_json& message = messages_[i];
    if (const auto thoughts = message.find("reasoning_content"); thoughts != message.end()) {
      *thoughts = marked_text(thoughts->get<std::string>(), ChatText::kThoughts, i);
    }
    const auto mark = [&](ordered_json& content) {
      const auto text = content.get<std::string>();
      content = message.at("role") == "assistant" ? marked_answer(text, i)
                                                  : marked_text(text, ChatText::kContent, i);
    };
    if (const auto content = message.find("content"); content != message.end()) {
      if (content->is_string()) mark(*content);
      if (content->is_array()) {
        for (ordered_json& part : *content) {
          if (part.contains("text")) mark(part.at("text"));
        }
      }
    }
    if (const auto calls = message.find("tool_calls"); calls != message.end()) {
      for (ordered_json& call : *calls) {
        ordered_json& function = call.at("function");
        function.at("name") =
            marked_text(function.at("name").get<std::string>(), ChatText::kName, i);
        function.at("arguments") = marked_arguments(function.at("arguments"), i);
      }
    }
  }
}

std::string MarkedChat::without_marks(std::string_view rendered,
                                      std::vector<MarkPlace>& places) const {
  std::string text;
  text.reserve(rendered.size());
  while (true) {
    const size_t next = std::min(rendered.find('\xF3'), rendered.size());
    text += rendered.substr(0, next);
    rendered.remove_prefix(next);
    if (rendered.empty()) return text;
    const std::optional<uint32_t> character = mark_at(rendered);
    const auto mark = character ? marks_.find(*character) : marks_.end();
    const bool is_mark = mark != marks_.end();
    if (is_mark) {
      places.push_back({text.size(), mark->second / 2, mark->second % 2 == 1});
    } else {
      text += rendered.front();
    }
    rendered.remove_prefix(is_mark ? kMarkBytes : 1);
  }
}

uint32_t MarkedChat::free_mark() {
  while (next_ <= kLastMark && taken_.contains(next_)) ++next_;
  return next_++;
}

std::string MarkedChat::marked_text(std::string_view text, ChatText::Kind kind, size_t message) {
  const std::string_view core = stripped(text);
  if (core.empty()) return std::string(text);
  const uint32_t before = free_mark(), behind = free_mark();
  if (behind > kLastMark) throw RowError("a chat has more than 32,767 texts");
  marks_[before] = 2 * texts_.size();
  marks_[behind] = 2 * texts_.size() + 1;
  texts_.push_back({kind, message, std::string(core)});
  const auto begin = static_cast<size_t>(core.data() - text.data());
  return std::string(text.substr(0, begin)) + utf8_of(before) + std::string(core) +
         utf8_of(behind) + std::string(text.substr(begin + core.size()));
}

std::string MarkedChat::marked_answer(std::string_view text, size_t message) {
  std::string marked;
  while (true) {
    const size_t open = text.find(kThoughts), close = text.find(kThoughtsEnd);
    const size_t at = std::min(open, close);
    // Text before </think> is thought, whether or not <think> stands before it.
    const auto kind = close < open ? ChatText::kThoughts : ChatText::kContent;
    marked += marked_text(text.substr(0, at), kind, message);
    if (at == std::string_view::npos) return marked;
    const std::string_view tag = open < close ? kThoughts : kThoughtsEnd;
    marked += tag;
    text.remove_prefix(at + tag.size());
  }
}

ordered_json MarkedChat::marked_arguments(const ordered_json& arguments, size_t message) {
  if (arguments.is_string()) {
    return marked_text(arguments.get<std::string>(), ChatText::kArgument, message);
  }
  if (!arguments.is_structured()) return arguments;
  ordered_json marked = arguments.is_array() ? ordered_json::array() : ordered_json::object();
  for (const auto& [key, value] : arguments.items()) {
    if (arguments.is_array()) {
      marked.push_back(marked_arguments(value, message));
    } else {
      const std::string name = marked_text(key, ChatText::kKey, message);
      marked[name] = marked_arguments(value, message);
    }
  }
  return marked;
}

}  // namespace longspan
