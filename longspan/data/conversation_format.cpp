#include "longspan/data/conversation_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"

namespace longspan {

namespace {

using nlohmann::json;

std::string names_in(const json& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Conversation RowReader::read(const json& row, const std::string& place) {
  for (const auto& item : row.items()) seen_.insert(item.key());
  Conversation conversation;
  conversation.source = place;
  const std::string wanted = entry_.formatting == Formatting::kAlpaca ? *entry_.columns.response
                                                                      : *entry_.columns.messages;
  if (!seen_.contains(wanted)) {
    throw UserError(fmt::format(
        "{}: dataset {}: there is no column {}; the row has: {}. Say in {} what the columns are "
        "called, for example\n  {}",
        place, entry_.name, wanted, names_in(row), entry_.info_file, suggested_entry(entry_, row)));
  }
  if (entry_.formatting == Formatting::kAlpaca) {
    read_alpaca(row, conversation);
  } else {
    read_sharegpt(row, conversation);
  }
  return conversation;
}

void RowReader::finish() const {
  const DatasetColumns& columns = entry_.columns;
  std::vector<std::optional<std::string>> demanded = {columns.history, columns.system};
  if (entry_.formatting == Formatting::kAlpaca) {
    demanded.push_back(columns.prompt);
    // The default name of the query may be absent: many files have only a prompt.
    if (entry_.columns_given) demanded.push_back(columns.query);
  }
  for (const auto& column : demanded) {
    if (column && !seen_.contains(*column)) wrong_columns(*column);
  }
}

void RowReader::wrong_columns(const std::string& missing) const {
  json columns = json::object();
  for (const std::string& name : seen_) columns[name] = "";
  throw UserError(fmt::format(
      "dataset {} ({}): no row has a column {}; the rows have: {}. Say in {} what the columns are "
      "called, for example\n  {}",
      entry_.name, entry_.files.front(), missing, fmt::join(seen_, ", "), entry_.info_file,
      suggested_entry(entry_, columns)));
}

void RowReader::no_answer(const std::string& column, const std::string& place) const {
  throw UserError(fmt::format(
      "{}: the row has no answer ({} is empty). Nothing can be trained on it: fill it in or remove "
      "the row.",
      place, column));
}

std::optional<std::string> RowReader::text(const json& row,
                                           const std::optional<std::string>& column,
                                           const std::string& place) const {
  if (!column) return std::nullopt;
  const auto value = row.find(*column);
  if (value == row.end() || value->is_null()) return std::nullopt;
  if (!value->is_string()) {
    throw UserError(fmt::format("{}: {} is not text but {}", place, *column, value->type_name()));
  }
  return value->get<std::string>();
}

void RowReader::read_alpaca(const json& row, Conversation& conversation) {
  const std::string& place = conversation.source;
  const DatasetColumns& columns = entry_.columns;
  const std::string system = text(row, columns.system, place).value_or("");
  if (!system.empty()) conversation.messages.push_back({"system", system});

  const auto history = columns.history ? row.find(*columns.history) : row.end();
  if (history != row.end() && !history->is_null()) {
    const bool pairs =
        history->is_array() && std::ranges::all_of(*history, [](const json& pair) {
          return pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
        });
    if (!pairs) {
      throw UserError(fmt::format("{}: {} must be a list of [question, answer] pairs of text",
                                  place, *columns.history));
    }
    for (const json& pair : *history) {
      conversation.messages.push_back({"user", pair[0].get<std::string>()});
      conversation.messages.push_back({"assistant", pair[1].get<std::string>()});
    }
  }

  std::string prompt = text(row, columns.prompt, place).value_or("");
  const std::string query = text(row, columns.query, place).value_or("");
  if (!prompt.empty() && !query.empty()) prompt += '\n';
  const std::string answer = text(row, columns.response, place).value_or("");
  if (answer.empty()) no_answer(*columns.response, place);
  conversation.messages.push_back({"user", prompt + query});
  conversation.messages.push_back({"assistant", answer});
}

void RowReader::read_sharegpt(const json& row, Conversation& conversation) {
  const std::string& place = conversation.source;
  const MessageTags& tags = entry_.tags;
  const std::string& column = *entry_.columns.messages;
  const auto given = row.find(column);
  if (given == row.end() || given->is_null() || (given->is_array() && given->empty())) {
    no_answer(column, place);
  }
  if (!given->is_array()) {
    throw UserError(
        fmt::format("{}: {} is not a list of messages but {}", place, column, given->type_name()));
  }

  const std::vector<std::pair<std::optional<std::string>, const char*>> roles = {
      {tags.user, "user"},
      {tags.assistant, "assistant"},
      {tags.observation, "observation"},
      {tags.function, "function"},
      {tags.system, "system"}};
  for (size_t i = 0; i < given->size(); ++i) {
    const json& message = (*given)[i];
    const std::string where = fmt::format("{}: message {} of {}", place, i + 1, column);
    if (!message.is_object()) {
      throw UserError(fmt::format("{} is not an object but {}", where, message.type_name()));
    }
    if (!message.contains(*tags.role) || !message.contains(*tags.content)) {
      throw UserError(fmt::format(
          "{} has no {}; it has: {}. Say in {} what the parts of a message are called, for example"
          "\n  {}",
          where, message.contains(*tags.role) ? *tags.content : *tags.role, names_in(message),
          entry_.info_file, suggested_entry(entry_, row)));
    }
    const std::string tag = text(message, tags.role, where).value_or("");
    const auto role =
        std::ranges::find_if(roles, [&](const auto& known) { return known.first == tag; });
    if (role == roles.end()) {
      std::vector<std::string> known;
      for (const auto& item : roles) {
        if (item.first) known.push_back(*item.first);
      }
      throw UserError(fmt::format(
          "{}: its {} is \"{}\"; dataset {} knows {}. Say in {} what the roles are called, for "
          "example\n  {}",
          where, *tags.role, tag, entry_.name, fmt::join(known, ", "), entry_.info_file,
          suggested_entry(entry_, row)));
    }
    const auto content = text(message, tags.content, where);
    if (!content) throw UserError(fmt::format("{}: {} is null, not text", where, *tags.content));
    conversation.messages.push_back({role->second, *content});
  }

  std::vector<Message>& messages = conversation.messages;
  const bool begins_with_system = messages.front().role == "system";
  // After a system message, questions and answers take turns; the last is an answer.
  for (size_t i = begins_with_system; i < messages.size(); ++i) {
    const bool asks = (i - begins_with_system) % 2 == 0;
    const std::string& role = messages[i].role;
    const bool fits =
        asks ? role == "user" || role == "observation" : role == "assistant" || role == "function";
    if (!fits) {
      throw UserError(fmt::format(
          "{}: message {} of {} is {}'s; questions and answers must take turns ({}), after at most "
          "one system message",
          place, i + 1, column, role, asks ? "a question is due" : "an answer is due"));
    }
  }
  if ((messages.size() - begins_with_system) % 2 != 0 || messages.back().content.empty() ||
      messages.back().role == "system") {
    no_answer(fmt::format("the last message of {}", column), place);
  }
  if (!begins_with_system) {
    const std::string system = text(row, entry_.columns.system, place).value_or("");
    if (!system.empty()) messages.insert(messages.begin(), {"system", system});
  } else if (messages.front().content.empty()) {
    messages.erase(messages.begin());
  }
}

}  // namespace longspan
