#include "longspan/data/message_parts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/media_columns.h"
#include "longspan/data/template_format.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

constexpr const char* kThoughtKeys[] = {"reasoning_content", "thinking", "reasoning"};

/// Returns the value of a key; nullptr where it is missing or null.
const ordered_json* value_of(const ordered_json& object, const std::string& key) {
  const auto value = object.find(key);
  return value == object.end() || value->is_null() ? nullptr : &*value;
}

/// Reads one message; `place` names it in errors.
class PartsReader {
 public:
  PartsReader(const ordered_json& message, const MessageKeys& keys, const Speaker& speaker,
              const std::string& place, UnreadKeys& unread)
      : message_(message), keys_(keys), speaker_(speaker), place_(place), unread_(unread) {}

  Message read() {
    Message read{.role = speaker_.role, .content = ""};
    read.content = content(read.pictures);
    std::vector<std::string> known = {keys_.role,   keys_.content,   "weight",
                                      "train",      "thinking",      "reasoning",
                                      "tool_calls", "function_call", "reasoning_content"};
    read.thoughts = thoughts();
    if (speaker_.writes_calls) take_written_calls(read);
    for (FunctionCall& call : calls()) read.calls.push_back(std::move(call));
    read.is_trained = is_trained();
    if (speaker_.role == Role::kObservation) {
      read.name = text("name", beside("name"));
      read.call_id = text("tool_call_id", beside("tool_call_id"));
      known.insert(known.end(), {"name", "tool_call_id"});
    }
    unread_.add(message_, known, "message");
    return read;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw RowError(fmt::format("{}: {}", place_, problem));
  }

  /// Returns the value of a key, unless the key is the one of the role or the text.
  const ordered_json* beside(const std::string& key) const {
    return key == keys_.role || key == keys_.content ? nullptr : value_of(message_, key);
  }

  void require_answer(const std::string& key) const {
    if (is_answer(speaker_.role)) return;
    fail(fmt::format("{} stands in a message of the {}'s; it belongs to answers", key,
                     name_of(speaker_.role)));
  }

  std::string text(const std::string& key, const ordered_json* value) const {
    if (value == nullptr) return "";
    if (!value->is_string()) fail(fmt::format("{} is not text but {}", key, value->type_name()));
    return value->get<std::string>();
  }

  std::string content(std::vector<MessagePicture>& pictures) const {
    const ordered_json* const content = value_of(message_, keys_.content);
    if (content == nullptr) {
      if (calls_tools(message_)) return "";
      fail(fmt::format("{} is null, not text", keys_.content));
    }
    if (!content->is_array()) return text(keys_.content, content);
    std::string joined;
    bool has_written_tags = false;
    for (size_t i = 0; i < content->size(); ++i) {
      if (const auto picture = picture_in((*content)[i], i + 1)) {
        pictures.push_back(*picture);
        joined += picture->is_video ? kVideoTag : kImageTag;
        continue;
      }
      const std::string text = text_of_part((*content)[i], i + 1);
      has_written_tags = has_written_tags || !tags_in(text).empty();
      joined += text;
    }
    if (has_written_tags && !pictures.empty()) {
      fail(
          fmt::format("{} has parts with pictures, and the tag {} or {} in a part of text. Write "
                      "each picture as a part.",
                      keys_.content, kImageTag, kVideoTag));
    }
    return joined;
  }

  /// Returns the picture of a part; nullopt: the part is of another type.
  std::optional<MessagePicture> picture_in(const ordered_json& part, size_t number) const {
    if (!keys_.takes_pictures || !part.is_object()) return std::nullopt;
    const ordered_json type = part.value("type", ordered_json());
    if (type != "image" && type != "image_url" && type != "video") return std::nullopt;
    const auto name = type.get<std::string>();
    const std::string place = fmt::format("{}: part {} of {}", place_, number, keys_.content);
    if (speaker_.role == Role::kSystem) {
      throw RowError(
          fmt::format("{} is a picture in the system message; pictures belong to the messages "
                      "after it",
                      place));
    }
    unread_.add(part, {"type", name, "path", "url"}, "part of a message");
    return picture_of_part(part, name, place);
  }

  std::string text_of_part(const ordered_json& part, size_t number) const {
    const ordered_json type = part.is_object() ? part.value("type", ordered_json()) : part;
    if (type != "text" || !part.is_object()) {
      fail(
          fmt::format("part {} of {} is of type {}; only parts of text{} are read, {{\"type\": "
                      "\"text\", \"text\": ...}}",
                      number, keys_.content, shortened(type.dump(), 60),
                      keys_.takes_pictures ? ", pictures (image, image_url) and video" : ""));
    }
    const ordered_json value = part.value("text", ordered_json());
    if (!value.is_string()) {
      fail(fmt::format("the text of part {} of {} is not text but {}", number, keys_.content,
                       value.type_name()));
    }
    unread_.add(part, {"type", "text"}, "part of a message");
    return value.get<std::string>();
  }

  std::string thoughts() const {
    std::string thoughts, said_by;
    for (const char* key : kThoughtKeys) {
      const std::string given = text(key, beside(key));
      if (given.empty()) continue;
      require_answer(key);
      if (!said_by.empty() && given != thoughts) {
        fail(fmt::format("{} and {} hold different thoughts; remove one of them", said_by, key));
      }
      thoughts = given;
      said_by = key;
    }
    return thoughts;
  }

  /// Turns JSON content into calls. As in LLaMA-Factory, marked thoughts may stand before it.
  void take_written_calls(Message& message) const {
    std::string json = std::move(message.content);
    message.content.clear();
    if (json.empty() && calls_tools(message_)) return;
    if (json.starts_with(kThoughtsBegin)) {
      if (const size_t end = json.find(kThoughtsClose); end != std::string::npos) {
        const std::string written = json.substr(kThoughtsBegin.size(), end - kThoughtsBegin.size());
        if (!message.thoughts.empty() && message.thoughts != written) {
          fail(fmt::format(
              "{} begins with thoughts that differ from the message's own key for thoughts",
              keys_.content));
        }
        message.thoughts = written;
        json.erase(0, end + kThoughtsClose.size());
      }
    }
    message.calls = parse_function_calls(json, place_);
  }

  std::vector<FunctionCall> calls() const {
    const ordered_json* const several = beside("tool_calls");
    const ordered_json* const one = beside("function_call");
    // All rows of a table have each column: a row without calls has an empty list.
    const bool has_several = several != nullptr && !(several->is_array() && several->empty());
    if (!has_several && one == nullptr) return {};
    require_answer(has_several ? "tool_calls" : "function_call");
    if (has_several && one != nullptr) {
      fail("tool_calls and function_call stand in one message; keep one of them");
    }
    if (has_several) return read_tool_calls(*several, place_ + ": tool_calls", unread_);
    return {read_function(*one, place_ + ": function_call", unread_)};
  }

  /// Reads OpenAI's `weight` and axolotl's `train`.
  bool is_trained() const {
    std::optional<bool> trained;
    if (const ordered_json* const weight = beside("weight")) {
      if (*weight != 0 && *weight != 1) {
        fail(fmt::format("weight is {}; wanted is 0 (not trained) or 1",
                         shortened(weight->dump(), 60)));
      }
      trained = *weight == 1;
    }
    if (const ordered_json* const train = beside("train")) {
      if (!train->is_boolean()) {
        fail(fmt::format("train is {}; wanted is true or false, without quotes",
                         shortened(train->dump(), 60)));
      }
      if (trained && *trained != train->get<bool>()) {
        fail(fmt::format("weight {} and train {} contradict each other", *trained ? 1 : 0,
                         train->dump()));
      }
      trained = train->get<bool>();
    }
    if (trained == true && !is_answer(speaker_.role)) {
      fail(
          fmt::format("weight 1 or train true stands in a message of the {}'s; these keys are for "
                      "answers (train_on_prompt: true trains the other messages)",
                      name_of(speaker_.role)));
    }
    return trained.value_or(true);
  }

  const ordered_json& message_;
  const MessageKeys& keys_;
  const Speaker& speaker_;
  const std::string& place_;
  UnreadKeys& unread_;
};

}  // namespace

bool calls_tools(const ordered_json& message) {
  const ordered_json* const several = value_of(message, "tool_calls");
  return (several != nullptr && !several->empty()) || value_of(message, "function_call") != nullptr;
}

Message read_message_parts(const ordered_json& message, const MessageKeys& keys,
                           const Speaker& speaker, const std::string& place, UnreadKeys& unread) {
  return PartsReader(message, keys, speaker, place, unread).read();
}

}  // namespace longspan
