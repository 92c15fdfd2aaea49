#include "longspan/generation/prompt_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>

#include "longspan/config/nearest.h"
#include "longspan/config/user_error.h"
#include "longspan/data/row_file.h"
#include "longspan/input/json_text.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

/// The text in a column; empty where it is absent or null.
std::string text_of(const Json& object, const char* name, const std::string& place) {
  const auto value = object.find(name);
  if (value == object.end() || value->is_null()) return "";
  if (!value->is_string()) {
    throw UserError(fmt::format("{}: {} is not text but {}", place, name, value->type_name()));
  }
  return value->get<std::string>();
}

/// Names of roles in sharegpt's and the OpenAI format.
Role role_of(const std::string& name, const std::string& place) {
  static const std::map<std::string, Role> roles = {{"user", Role::kUser},
                                                    {"human", Role::kUser},
                                                    {"assistant", Role::kAssistant},
                                                    {"gpt", Role::kAssistant},
                                                    {"model", Role::kAssistant},
                                                    {"system", Role::kSystem},
                                                    {"tool", Role::kObservation},
                                                    {"observation", Role::kObservation},
                                                    {"function_call", Role::kAssistant},
                                                    {"function", Role::kAssistant}};
  const auto role = roles.find(name);
  if (role != roles.end()) return role->second;
  throw UserError(fmt::format(
      "{}: a message is \"{}\"'s; known are user (human), assistant (gpt), system, tool "
      "(observation) and function_call",
      place, name));
}

void read_messages(const Json& messages, const std::string& place, Conversation& conversation) {
  for (const Json& message : messages) {
    const bool openai = message.is_object() && message.contains("role");
    if (!message.is_object() || !message.contains(openai ? "role" : "from")) {
      throw UserError(fmt::format(
          "{}: a message is {}; wanted is {{\"role\": ..., \"content\": ...}} or {{\"from\": ..., "
          "\"value\": ...}}",
          place, message.is_object() ? "without role and from" : message.type_name()));
    }
    conversation.messages.push_back(
        {role_of(text_of(message, openai ? "role" : "from", place), place),
         text_of(message, openai ? "content" : "value", place)});
  }
}

void read_alpaca(const Json& row, const std::string& place, Conversation& conversation) {
  if (const auto history = row.find("history"); history != row.end() && history->is_array()) {
    for (const Json& pair : *history) {
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

Conversation read_row(const Json& row, const std::string& place) {
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
      read_messages(*value, place, conversation);
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
  if (!system.empty() && (messages.empty() || messages[0].role != Role::kSystem)) {
    messages.insert(messages.begin(), {Role::kSystem, system});
  }
  // What follows the last question is the answer that the row was made with.
  while (!messages.empty() && is_answer(messages.back().role)) {
    messages.pop_back();
  }
  if (messages.empty() || messages.back().role == Role::kSystem ||
      messages.back().content.empty()) {
    throw UserError(fmt::format("{}: the row has no question to answer", place));
  }
  return conversation;
}

}  // namespace

std::vector<PromptRow> read_prompt_file(const std::string& path, int64_t most) {
  const bool lines = path.ends_with(".txt");
  std::vector<PromptRow> rows;
  const auto take = [&](const Json& row, const std::string& place) {
    if (lines && row.at("text").get<std::string>().find_first_not_of(" \t\r") == std::string::npos)
      return true;
    rows.push_back({read_row(row, place), row.dump()});
    return std::ssize(rows) < most;
  };
  const auto refuse = [](const std::string& problem) -> bool { throw UserError(problem); };
  for_each_ordered_row(path, /*unwraps_data=*/true, {take, refuse});
  if (rows.empty()) throw UserError(fmt::format("{}: there are no prompts in it", path));
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
