#include "longspan/generation/prompt_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/data/column_rows.h"
#include "longspan/data/csv_rows.h"
#include "longspan/data/file_kinds.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/message_parts.h"
#include "longspan/data/row_file.h"
#include "longspan/generation/prompt_media.h"
#include "longspan/input/json_text.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the text in a column; "" where it is missing or null.
std::string text_of(const Json& object, const char* name, const std::string& place) {
  const auto value = object.find(name);
  if (value == object.end() || value->is_null()) return "";
  if (!value->is_string()) {
    throw UserError(fmt::format("{}: {} is not text but {}{}", place, name, value->type_name(),
                                csv_reason(place, *value)));
  }
  return value->get<std::string>();
}

/// Role names of sharegpt's and OpenAI's formats.
Speaker speaker_of(const std::string& name, bool openai, const std::string& place) {
  static const std::map<std::string, Speaker> speakers = {
      {"user", {Role::kUser}},
      {"human", {Role::kUser}},
      {"assistant", {Role::kAssistant}},
      {"gpt", {Role::kAssistant}},
      {"model", {Role::kAssistant}},
      {"system", {Role::kSystem}},
      {"developer", {Role::kSystem}},
      {"tool", {Role::kObservation}},
      {"observation", {Role::kObservation}},
      {"function_call", {Role::kAssistant, /*writes_calls=*/true}}};
  // In OpenAI's format "function" is an old name of a tool. Elsewhere it is the role that calls
  // one.
  if (name == "function") {
    return openai ? Speaker{Role::kObservation} : speakers.at("function_call");
  }
  const auto speaker = speakers.find(name);
  if (speaker != speakers.end()) return speaker->second;
  throw UserError(fmt::format(
      "{}: a message is \"{}\"'s; known are user (human), assistant (gpt), system, tool "
      "(observation) and function_call",
      place, name));
}

/// Reads messages up to the last question. An answer behind it belongs to the row's data set.
void read_messages(const Json& messages, const std::string& place, Conversation& conversation,
                   UnreadKeys& unread) {
  struct Spoken {
    const Json& message;
    MessageKeys keys;
    Speaker speaker;
  };
  std::vector<Spoken> spoken;
  for (const Json& message : messages) {
    const bool openai = message.is_object() && message.contains("role");
    if (!message.is_object() || !message.contains(openai ? "role" : "from")) {
      throw UserError(fmt::format(
          "{}: a message is {}; wanted is {{\"role\": ..., \"content\": ...}} or {{\"from\": ..., "
          "\"value\": ...}}",
          place, message.is_object() ? "without role and from" : message.type_name()));
    }
    MessageKeys keys = openai ? MessageKeys{"role", "content"} : MessageKeys{"from", "value"};
    keys.takes_pictures = true;
    const Speaker speaker = speaker_of(text_of(message, keys.role.c_str(), place), openai, place);
    spoken.push_back({message, std::move(keys), speaker});
  }
  while (!spoken.empty() && is_answer(spoken.back().speaker.role)) spoken.pop_back();
  for (const auto& [message, keys, speaker] : spoken) {
    const std::string where =
        fmt::format("{}: message {}", place, conversation.messages.size() + 1);
    conversation.messages.push_back(read_message_parts(message, keys, speaker, where, unread));
  }
}

void read_alpaca(const Json& row, const std::string& place, Conversation& conversation) {
  if (const auto history = row.find("history"); history != row.end() && !history->is_null()) {
    for (const Json& pair : history->is_array() ? *history : Json::array({*history})) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
        throw UserError(
            fmt::format("{}: history must be a list of [question, answer] pairs of text", place));
      }
      conversation.messages.push_back({Role::kUser, pair[0].get<std::string>()});
      conversation.messages.push_back({Role::kAssistant, pair[1].get<std::string>()});
    }
  }
  std::string question = text_of(row, "instruction", place);
  const std::string input = text_of(row, "input", place);
  if (!question.empty() && !input.empty()) question += '\n';
  conversation.messages.push_back({Role::kUser, question + input});
}

Conversation read_row(const Json& row, const std::string& place, const std::string& folder,
                      UnreadKeys& unread) {
  Conversation conversation;
  conversation.source = place;
  std::vector<Message>& messages = conversation.messages;
  const std::string system = text_of(row, "system", place);
  bool found = false;
  for (const char* column : {"messages", "conversations", "instruction", "prompt", "text"}) {
    const auto value = row.find(column);
    if (value == row.end() || value->is_null()) continue;
    found = true;
    if (value->is_array()) {
      read_messages(*value, place, conversation, unread);
    } else if (column == std::string_view("instruction")) {
      read_alpaca(row, place, conversation);
    } else {
      messages.push_back({Role::kUser, text_of(row, column, place)});
    }
    break;
  }
  if (!found) {
    std::vector<std::string> names;
    for (const auto& item : row.items()) names.push_back(item.key());
    throw UserError(fmt::format(
        "{}: no prompt in the row; it has: {}. Wanted is one of messages, conversations, "
        "instruction, prompt, text",
        place, shortened(fmt::format("{}", fmt::join(names, ", ")), 400)));
  }
  if (const auto tools = row.find("tools"); tools != row.end()) {
    conversation.tools = read_tools(*tools, place + ": tools");
  }
  const bool has_system = !messages.empty() && messages[0].role == Role::kSystem;
  if (!system.empty() && has_system) unread.add("system beside a system message", "row");
  if (!system.empty() && !has_system) {
    messages.insert(messages.begin(), {Role::kSystem, system});
  }
  if (messages.empty() || messages.back().role == Role::kSystem ||
      messages.back().content.empty()) {
    throw UserError(fmt::format("{}: the row has no question to answer", place));
  }
  place_prompt_media(row, folder, conversation);
  return conversation;
}

}  // namespace

std::vector<PromptRow> read_prompt_file(const std::string& path, int64_t most,
                                        UnreadKeys* unread_keys, std::vector<std::string>* notes) {
  UnreadKeys unread;
  const bool lines = kind_of_file(path) == FileKind::kText;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::vector<PromptRow> rows;
  const auto take = [&](const Json& row, const std::string& place) {
    if (lines && row.at("text").get<std::string>().find_first_not_of(" \t\r") == std::string::npos)
      return true;
    rows.push_back({read_row(row, place, folder, unread), row.dump()});
    return std::ssize(rows) < most;
  };
  const auto refuse = [](const std::string& problem) -> bool { throw UserError(problem); };
  const auto note = [&](const std::string& sentence) {
    if (notes != nullptr) notes->push_back(sentence);
  };
  const auto leave_out = [](const LeftOutColumn& column, const std::string& file) {
    static const std::set<std::string> read = {
        "messages", "conversations", "instruction", "prompt", "text",  "input",
        "system",   "history",       "tools",       "images", "videos"};
    if (column.path == column.column && read.contains(column.column)) {
      throw UserError(refusal_of(column, file));
    }
  };
  for_each_row(path, /*unwraps_data=*/true, {take, refuse, note, leave_out});
  if (rows.empty()) throw UserError(fmt::format("{}: there are no prompts in it", path));
  if (unread_keys != nullptr) unread_keys->add(unread);
  return rows;
}

std::string answered_row(const PromptRow& row, const std::string& answer,
                         const std::string& finish_reason) {
  Json object = parse_ordered_json(row.row, row.conversation.source);
  object.erase("predict");
  object.erase("finish_reason");
  object["predict"] = answer;
  object["finish_reason"] = finish_reason;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace longspan
