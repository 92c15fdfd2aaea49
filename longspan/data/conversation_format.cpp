#include "longspan/data/conversation_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/data/column_rows.h"
#include "longspan/data/csv_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/media_columns.h"
#include "longspan/data/message_parts.h"
#include "longspan/data/row_lists.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// Bytes of a message for the names of columns.
constexpr size_t kNames = 400;

std::string names_in(const ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names.empty() ? "none" : shortened(fmt::format("{}", fmt::join(names, ", ")), kNames);
}

/// Returns a value for a message: its type and its beginning.
std::string shown(const ordered_json& value) {
  if (value.is_null()) return "null";
  std::string text = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  if (text.size() > 40) {
    size_t end = 40;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // UTF-8
    text = text.substr(0, end) + "...";
  }
  return fmt::format("{} {}",
                     value.is_object()   ? "an object"
                     : value.is_string() ? "text"
                     : value.is_array()  ? "a list"
                                         : "the " + std::string(value.type_name()),
                     text);
}

}  // namespace

bool unwraps_data(const DatasetEntry& entry) {
  const DatasetColumns& columns = entry.columns;
  const auto named = {columns.prompt,  columns.query,    columns.response,  columns.history,
                      columns.system,  columns.messages, columns.chosen,    columns.rejected,
                      columns.kto_tag, columns.tools,    columns.documents, columns.images,
                      columns.videos};
  return std::ranges::find(named, std::optional<std::string>("data")) == named.end();
}

Conversation RowReader::read(const ordered_json& row, const std::string& place) {
  for (const auto& item : row.items()) seen_.insert(item.key());
  Conversation conversation;
  conversation.source = place;
  UnreadKeys unread;
  for (const std::string& wanted : demanded_in_first_row()) {
    if (seen_.contains(wanted)) continue;
    throw UserError(fmt::format(
        "{}: dataset {}: there is no column {}; the row has: {}. Say in {} what the columns are "
        "called, for example\n  {}",
        place, entry_.name, wanted, names_in(row), entry_.info_file, suggested_entry(entry_, row)));
  }
  if (parts_of(entry_.kind).desirability) conversation.desirable = read_desirable(row, place);
  switch (entry_.formatting) {
    case Formatting::kAlpaca:
      read_alpaca(row, conversation);
      break;
    case Formatting::kShareGpt:
    case Formatting::kOpenAi:
      read_messages(row, conversation, unread);
      break;
  }
  if (const auto& column = entry_.columns.tools; column && row.contains(*column)) {
    conversation.tools = read_tools(row.at(*column), fmt::format("{}: {}", place, *column));
  }
  if (const auto& column = entry_.columns.documents; column && row.contains(*column)) {
    conversation.documents = read_documents(row.at(*column), fmt::format("{}: {}", place, *column));
  }
  if (parts_of(entry_.kind).pair) {
    conversation.messages.push_back(read_side(row, *entry_.columns.chosen, place, unread));
    conversation.rejected = read_side(row, *entry_.columns.rejected, place, unread);
  }
  place_pictures(entry_, row, conversation);
  require_trained_answer(conversation);
  unread.add(row, columns_read(), "row");
  unread_.add(unread);
  return conversation;
}

std::vector<std::string> RowReader::columns_read() const {
  const DatasetColumns& columns = entry_.columns;
  const RowParts parts = parts_of(entry_.kind);
  std::vector<std::optional<std::string>> read;
  if (holds_messages(entry_.formatting)) {
    read = {columns.messages, columns.system, columns.tools, columns.documents};
  } else {
    read = {columns.prompt, columns.query};
    if (!parts.text) {
      read.insert(read.end(), {columns.history, columns.system, columns.tools, columns.documents});
    }
    if (parts.answer) read.push_back(columns.response);
  }
  read.insert(read.end(), {columns.images, columns.videos});
  if (parts.pair) read.insert(read.end(), {columns.chosen, columns.rejected});
  if (parts.desirability) read.push_back(columns.kto_tag);
  std::vector<std::string> names;
  for (const auto& column : read) {
    if (column) names.push_back(*column);
  }
  return names;
}

void RowReader::require_trained_answer(const Conversation& conversation) const {
  const RowParts parts = parts_of(entry_.kind);
  if (!parts.pair && !parts.desirability) return;
  const bool trained = conversation.messages.back().is_trained &&
                       (!conversation.rejected || conversation.rejected->is_trained);
  if (trained) return;
  throw RowError(fmt::format(
      "{}: weight: 0 or train: false takes {} out of training, and nothing else of such a row is "
      "trained. Remove that key or the row.",
      conversation.source, parts.pair ? "an answer of the pair" : "the answer"));
}

std::vector<std::string> RowReader::demanded_in_first_row() const {
  const DatasetColumns& columns = entry_.columns;
  if (parts_of(entry_.kind).text) return {*columns.prompt};
  std::vector<std::string> demanded;
  if (holds_messages(entry_.formatting)) {
    demanded.push_back(*columns.messages);
  } else if (parts_of(entry_.kind).answer) {
    demanded.push_back(*columns.response);
  }
  if (parts_of(entry_.kind).pair) {
    demanded.push_back(*columns.chosen);
    demanded.push_back(*columns.rejected);
  }
  if (parts_of(entry_.kind).desirability) demanded.push_back(*columns.kto_tag);
  return demanded;
}

void RowReader::require_read(const LeftOutColumn& column, const std::string& path) const {
  // A field within a column is left out like a key that no code reads.
  if (column.path != column.column) return;
  const std::vector<std::string> names = columns_read();
  if (std::ranges::find(names, column.column) == names.end()) return;
  throw UserError(fmt::format("dataset {}: {}", entry_.name, refusal_of(column, path)));
}

void RowReader::finish() const {
  if (entry_.is_guessed) return;
  const DatasetColumns& columns = entry_.columns;
  std::vector<std::optional<std::string>> demanded = {columns.history, columns.documents,
                                                      columns.images, columns.videos};
  // Default columns of tools (formatting: openai) and of the system text (v1) may be missing.
  if (entry_.columns_given) demanded.insert(demanded.end(), {columns.tools, columns.system});
  if (!holds_messages(entry_.formatting)) {
    demanded.push_back(columns.prompt);
    // The query's default column may be missing: many files have only a prompt.
    if (entry_.columns_given) demanded.push_back(columns.query);
  }
  for (const auto& column : demanded) {
    if (column && !seen_.contains(*column)) wrong_columns(*column);
  }
}

void RowReader::wrong_columns(const std::string& missing) const {
  ordered_json columns = ordered_json::object();
  for (const std::string& name : seen_) columns[name] = "";
  throw UserError(fmt::format(
      "dataset {} ({}): no row has a column {}; the rows have: {}. Say in {} what the columns are "
      "called, for example\n  {}",
      entry_.name, entry_.files.front(), missing,
      shortened(fmt::format("{}", fmt::join(seen_, ", ")), kNames), entry_.info_file,
      suggested_entry(entry_, columns)));
}

void RowReader::no_answer(const std::string& column, const std::string& place) const {
  throw RowError(fmt::format(
      "{}: the row has no {} ({} is empty{}). Nothing can be trained on it: fill it in or remove "
      "the row.",
      place, parts_of(entry_.kind).pair ? "question" : "answer", column,
      csv_reason(place, nullptr)));
}

std::optional<std::string> RowReader::text(const ordered_json& row,
                                           const std::optional<std::string>& column,
                                           const std::string& place) const {
  if (!column) return std::nullopt;
  const auto value = row.find(*column);
  if (value == row.end() || value->is_null()) return std::nullopt;
  if (!value->is_string()) {
    throw RowError(fmt::format("{}: {} is not text but {}{}", place, *column, value->type_name(),
                               csv_reason(place, *value)));
  }
  return value->get<std::string>();
}

bool RowReader::read_desirable(const ordered_json& row, const std::string& place) const {
  const std::string& column = *entry_.columns.kto_tag;
  const auto desirability = row.find(column);
  if (desirability != row.end() && desirability->is_boolean()) return desirability->get<bool>();
  throw RowError(fmt::format(
      "{}: {} is {}; wanted is true (the answer is good) or false (it is bad), without quotes",
      place, column, desirability == row.end() ? "missing" : shown(*desirability)));
}

Message RowReader::read_side(const ordered_json& row, const std::string& column,
                             const std::string& place, UnreadKeys& unread) const {
  const bool is_message = holds_messages(entry_.formatting);
  const auto side = row.find(column);
  const bool fits = side != row.end() && (is_message ? side->is_object() : side->is_string());
  if (!fits) {
    const std::string wanted =
        is_message ? fmt::format(
                         "one message, {{\"{}\": ..., \"{}\": ...}} (text belongs to "
                         "\"formatting\": \"alpaca\")",
                         *entry_.tags.role, *entry_.tags.content)
                   : "text (a message belongs to \"formatting\": \"sharegpt\")";
    throw RowError(fmt::format("{}: {} is {}; wanted is {}{}", place, column,
                               side == row.end() ? "missing" : shown(*side), wanted,
                               side == row.end() ? "" : csv_reason(place, *side)));
  }
  if (!is_message) return {Role::kAssistant, side->get<std::string>()};
  Message message = read_message(*side, row, fmt::format("{}: {}", place, column), unread);
  if (!is_answer(message.role)) {
    throw RowError(
        fmt::format("{}: {} is {}'s; wanted is an answer", place, column, name_of(message.role)));
  }
  return message;
}

void RowReader::read_history(const ordered_json& row, Conversation& conversation) const {
  const DatasetColumns& columns = entry_.columns;
  const auto history = columns.history ? row.find(*columns.history) : row.end();
  if (history == row.end() || history->is_null()) return;
  const bool pairs =
      history->is_array() && std::ranges::all_of(*history, [](const ordered_json& pair) {
        return pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
      });
  if (!pairs) {
    throw RowError(fmt::format("{}: {} must be a list of [question, answer] pairs of text",
                               conversation.source, *columns.history));
  }
  for (const ordered_json& pair : *history) {
    conversation.messages.push_back({Role::kUser, pair[0].get<std::string>()});
    conversation.messages.push_back({Role::kAssistant, pair[1].get<std::string>()});
  }
}

void RowReader::read_alpaca(const ordered_json& row, Conversation& conversation) const {
  const std::string& place = conversation.source;
  const DatasetColumns& columns = entry_.columns;
  const std::string system = text(row, columns.system, place).value_or("");
  if (!system.empty()) conversation.messages.push_back({Role::kSystem, system});
  read_history(row, conversation);
  std::string prompt = text(row, columns.prompt, place).value_or("");
  const std::string query = text(row, columns.query, place).value_or("");
  if (!prompt.empty() && !query.empty()) prompt += entry_.between_prompt_and_query;
  conversation.messages.push_back({Role::kUser, prompt + query});
  if (!parts_of(entry_.kind).answer) return;
  const std::string answer = text(row, columns.response, place).value_or("");
  if (answer.empty()) no_answer(*columns.response, place);
  conversation.messages.push_back({Role::kAssistant, answer});
}

Message RowReader::read_message(const ordered_json& message, const ordered_json& row,
                                const std::string& where, UnreadKeys& unread) const {
  const MessageTags& tags = entry_.tags;
  if (!message.is_object()) {
    throw RowError(fmt::format("{} is not an object but {}", where, message.type_name()));
  }
  const bool says_nothing = !message.contains(*tags.content) && !calls_tools(message);
  if (!message.contains(*tags.role) || says_nothing) {
    throw RowError(fmt::format(
        "{} has no {}; it has: {}. Say in {} what the parts of a message are called, for example\n"
        "  {}",
        where, message.contains(*tags.role) ? *tags.content : *tags.role, names_in(message),
        entry_.info_file, suggested_entry(entry_, row)));
  }
  std::vector<std::pair<std::optional<std::string>, Speaker>> roles = {
      {tags.user, {Role::kUser}},
      {tags.assistant, {Role::kAssistant}},
      {tags.observation, {Role::kObservation}},
      {tags.function, {Role::kAssistant, /*writes_calls=*/true}},
      {tags.system, {Role::kSystem}}};
  // OpenAI's name of the system for newer models, and of tools for older ones.
  if (entry_.formatting == Formatting::kOpenAi) {
    if (tags.system) roles.push_back({"developer", {Role::kSystem}});
    if (tags.observation) roles.push_back({"function", {Role::kObservation}});
  }
  const std::string tag = text(message, tags.role, where).value_or("");
  const auto role =
      std::ranges::find_if(roles, [&](const auto& known) { return known.first == tag; });
  if (role == roles.end()) {
    std::vector<std::string> known;
    for (const auto& item : roles) {
      if (item.first) known.push_back(*item.first);
    }
    throw RowError(fmt::format(
        "{}: its {} is \"{}\"; dataset {} knows {}. Say in {} what the roles are called, for "
        "example\n  {}",
        where, *tags.role, tag, entry_.name, fmt::join(known, ", "), entry_.info_file,
        suggested_entry(entry_, row)));
  }
  return read_message_parts(message, {*tags.role, *tags.content, true}, role->second, where,
                            unread);
}

void RowReader::read_messages(const ordered_json& row, Conversation& conversation,
                              UnreadKeys& unread) const {
  const std::string& place = conversation.source;
  const std::string& column = *entry_.columns.messages;
  const auto given = row.find(column);
  if (given == row.end() || given->is_null() || (given->is_array() && given->empty())) {
    no_answer(column, place);
  }
  if (!given->is_array()) {
    throw RowError(
        fmt::format("{}: {} is not a list of messages but {}", place, column, given->type_name()));
  }
  std::vector<Message>& messages = conversation.messages;
  for (size_t i = 0; i < given->size(); ++i) {
    const std::string where = fmt::format("{}: message {} of {}", place, i + 1, column);
    messages.push_back(read_message((*given)[i], row, where, unread));
  }
  require_turns(conversation);
  const std::string system = text(row, entry_.columns.system, place).value_or("");
  if (system.empty()) return;
  if (messages.front().role == Role::kSystem) {
    unread.add(*entry_.columns.system + " beside a system message", "row");  // as LLaMA-Factory
  } else {
    messages.insert(messages.begin(), {Role::kSystem, system});
  }
}

void RowReader::require_turns(const Conversation& conversation) const {
  const std::vector<Message>& messages = conversation.messages;
  const std::string& place = conversation.source;
  const std::string& column = *entry_.columns.messages;
  if (const auto wrong = first_out_of_turn(messages)) {
    throw RowError(fmt::format(
        "{}: message {} of {} is {}'s; questions and answers must take turns ({}), after at most "
        "one system message; results of several tools may stand in a row",
        place, wrong->index + 1, column, name_of(messages[wrong->index].role),
        wrong->answer_is_due ? "an answer is due" : "a question is due"));
  }
  const bool ends_with_answer = !is_question(messages.back().role);
  if (parts_of(entry_.kind).pair) {
    if (!ends_with_answer) return;
    throw RowError(fmt::format(
        "{}: the last message of {} must be the question that {} and {} answer; it is {}'s", place,
        column, *entry_.columns.chosen, *entry_.columns.rejected, name_of(messages.back().role)));
  }
  if (!ends_with_answer) {
    throw RowError(fmt::format(
        "{}: the chat ends with a question (message {} of {} is {}'s), and no answer to it "
        "can be trained. Add the answer, or remove that message.",
        place, messages.size(), column, name_of(messages.back().role)));
  }
  if (is_empty(messages.back()) || messages.back().role == Role::kSystem) {
    no_answer(fmt::format("the last message of {}", column), place);
  }
}

}  // namespace longspan
