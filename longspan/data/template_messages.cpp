#include "longspan/data/template_messages.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "longspan/input/json_text.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// Whether the text has a value: a text as it is or as JSON, with or without escapes of non-ASCII
/// characters; a number or a boolean as JSON or as Python writes it.
bool is_in(std::string_view text, const ordered_json& value) {
  const auto has = [&](std::string_view part) { return text.find(part) != text.npos; };
  if (value.is_string()) {
    if (has(value.get<std::string>())) return true;
    for (const bool only_ascii : {false, true}) {
      const std::string quoted = value.dump(-1, ' ', only_ascii);
      if (has(std::string_view(quoted).substr(1, quoted.size() - 2))) return true;
    }
    return false;
  }
  if (value.is_null()) return has("null") || has("None");
  if (value.is_boolean()) return has(value.dump()) || has(value.get<bool>() ? "True" : "False");
  return has(value.dump());
}

bool has_parts(std::string_view text, const ordered_json& value) {
  if (!value.is_structured()) return is_in(text, value);
  return std::ranges::all_of(value.items(), [&](const auto& item) {
    return (value.is_array() || is_in(text, item.key())) && has_parts(text, item.value());
  });
}

/// Returns a content with pictures as a list of parts.
ordered_json parts_of_content(const std::string& content) {
  ordered_json parts = ordered_json::array();
  size_t at = 0;
  const auto add_text = [&](size_t end) {
    if (end > at) parts.push_back({{"type", "text"}, {"text", content.substr(at, end - at)}});
  };
  for (const TagPlace& tag : tags_in(content)) {
    add_text(tag.begin);
    parts.push_back({{"type", tag.is_video ? "video" : "image"}});
    at = tag.begin + tag.size;
  }
  add_text(content.size());
  return parts;
}

}  // namespace

std::span<const CallShape> call_shapes() {
  static constexpr CallShape kShapes[] = {
      {false, false}, {true, false}, {true, true}, {false, true}};
  return kShapes;
}

ordered_json template_message(const Message& message, const CallShape& shape,
                              const std::string& place) {
  const bool is_tool = message.role == Role::kObservation;
  ordered_json given = {{"role", is_tool ? "tool" : name_of(message.role)},
                        {"content", message.content}};
  if (!message.pictures.empty()) given["content"] = parts_of_content(message.content);
  if (!message.thoughts.empty()) given["reasoning_content"] = message.thoughts;
  if (!message.name.empty()) given["name"] = message.name;
  if (!message.call_id.empty()) given["tool_call_id"] = message.call_id;
  if (message.calls.empty()) return given;
  if (message.content.empty() && shape.content_is_null) given["content"] = nullptr;
  ordered_json& calls = given["tool_calls"] = ordered_json::array();
  for (const FunctionCall& call : message.calls) {
    ordered_json& entry = calls.emplace_back(ordered_json{{"type", "function"}});
    if (!call.id.empty()) entry["id"] = call.id;
    ordered_json arguments = parse_ordered_json(call.arguments, place);
    std::string text = call.arguments;
    // sharegpt's function_call may hold the arguments as text.
    if (arguments.is_string()) {
      text = arguments.get<std::string>();
      if (auto object = try_parse_ordered_json(text)) arguments = *std::move(object);
    }
    entry["function"] = {{"name", call.name}};
    entry["function"]["arguments"] = shape.arguments_are_text ? ordered_json(text) : arguments;
  }
  return given;
}

std::vector<MessagePicture> printed_otherwise(const Conversation& conversation) {
  std::vector<MessagePicture> pictures;
  for (const Message& message : conversation.messages) {
    std::ranges::copy_if(message.pictures, std::back_inserter(pictures),
                         [](const MessagePicture& one) { return one.text != one.printed; });
  }
  return pictures;
}

RenderedChat with_picture_texts(RenderedChat chat, const std::vector<MessagePicture>& pictures) {
  if (pictures.empty()) return chat;
  struct Moved {
    size_t from, by;  // bytes from `from` on; modulo 2^64
  };
  std::vector<Moved> moves = {{0, 0}};
  std::string text;
  size_t from = 0;
  for (const MessagePicture& picture : pictures) {
    const size_t at = chat.text.find(picture.printed, from);
    if (at == std::string::npos) break;  // the expansion of the row's pictures refuses the row
    text.append(chat.text, from, at - from).append(picture.text);
    from = at + picture.printed.size();
    moves.push_back({from, text.size() - from});
  }
  chat.text = text.append(chat.text, from);
  const auto move = [&](size_t& place) {
    place += (std::ranges::upper_bound(moves, place, {}, &Moved::from) - 1)->by;
  };
  for (GenerationSpan& span : chat.generation) {
    move(span.begin);
    move(span.end);
  }
  return chat;
}

bool is_printed_in(std::string_view text, const FunctionCall& call) {
  if (text.find(call.name) == text.npos) return false;
  const ordered_json arguments = parse_ordered_json(call.arguments, call.name);
  if (arguments.is_object() && !arguments.empty() &&
      text.find("{'" + arguments.begin().key() + "':") != text.npos) {
    return false;
  }
  return has_parts(text, arguments);
}

}  // namespace longspan
