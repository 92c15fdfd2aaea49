#include "longspan/data/known_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/input/json_text.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// The values of a column.
enum class Shape {
  kString,
  kFlag,
  kChat,           // a list of messages with the key "role"
  kShareGpt,       // a list of messages with the key "from"
  kMessage,        // a message with the key "role"
  kShareGptAnswer  // a message with the key "from"
};

struct NamedColumn {
  const char* name;
  Shape shape;
};

/// Columns of rows, and the entry by which they are read.
struct Form {
  RowKind kind;  // kAnswer stands for kQuestion, too
  std::vector<NamedColumn> columns;
  const char* entry;
  Joined joined = Joined::kNothing;
};

/// The first form whose columns are there counts.
const std::vector<Form>& forms() {
  using enum Shape;
  using enum RowKind;
  static const std::vector<Form> forms = {
      {kText, {{"text", kString}}, R"({"columns": {"prompt": "text"}})"},

      {kAnswer,
       {{"messages", kChat}},
       R"({"formatting": "openai", "columns": {"messages": "messages"}})"},
      {kAnswer,
       {{"messages", kShareGpt}},
       R"({"formatting": "sharegpt", "columns": {"messages": "messages"}})"},
      {kAnswer,
       {{"conversations", kShareGpt}},
       R"({"formatting": "sharegpt", "columns": {"messages": "conversations"}})"},
      {kAnswer,
       {{"conversations", kChat}},
       R"({"formatting": "openai", "columns": {"messages": "conversations"}})"},
      {kAnswer,
       {{"prompt", kChat}, {"completion", kChat}},
       R"({"formatting": "openai", "columns": {"messages": "prompt + completion"}})",
       Joined::kPromptAndCompletion},
      {kAnswer,
       {{"prompt", kString}, {"completion", kString}},
       R"({"columns": {"prompt": "prompt", "response": "completion"}})"},
      {kAnswer,
       {{"instruction", kString}, {"output", kString}},
       R"({"columns": {"prompt": "instruction", "query": "input", "response": "output"}})"},

      {kUnpairedPreference,
       {{"prompt", kChat}, {"completion", kChat}, {"label", kFlag}},
       R"({"formatting": "openai",
           "columns": {"messages": "prompt + completion", "kto_tag": "label"}})",
       Joined::kPromptAndCompletion},
      {kUnpairedPreference,
       {{"prompt", kString}, {"completion", kString}, {"label", kFlag}},
       R"({"columns": {"prompt": "prompt", "response": "completion", "kto_tag": "label"}})"},
      {kUnpairedPreference,
       {{"messages", kChat}, {"label", kFlag}},
       R"({"formatting": "openai", "columns": {"messages": "messages", "kto_tag": "label"}})"},
      {kUnpairedPreference,
       {{"messages", kChat}, {"kto_tag", kFlag}},
       R"({"formatting": "openai", "columns": {"messages": "messages", "kto_tag": "kto_tag"}})"},
      {kUnpairedPreference,
       {{"conversations", kShareGpt}, {"kto_tag", kFlag}},
       R"({"formatting": "sharegpt",
           "columns": {"messages": "conversations", "kto_tag": "kto_tag"}})"},

      {kPair,
       {{"prompt", kChat}, {"chosen", kChat}, {"rejected", kChat}},
       R"({"ranking": true, "formatting": "openai",
           "columns": {"messages": "prompt", "chosen": "chosen", "rejected": "rejected"}})",
       Joined::kAnswersInLists},
      {kPair,
       {{"chosen", kChat}, {"rejected", kChat}},
       R"({"ranking": true, "formatting": "openai",
           "columns": {"messages": "prompt", "chosen": "chosen", "rejected": "rejected"}})",
       Joined::kCommonMessages},
      {kPair,
       {{"prompt", kString}, {"chosen", kString}, {"rejected", kString}},
       R"({"ranking": true,
           "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}})"},
      {kPair,
       {{"instruction", kString}, {"chosen", kString}, {"rejected", kString}},
       R"({"ranking": true, "columns": {"prompt": "instruction", "query": "input",
                                        "chosen": "chosen", "rejected": "rejected"}})"},
      {kPair,
       {{"messages", kChat}, {"chosen", kMessage}, {"rejected", kMessage}},
       R"({"ranking": true, "formatting": "openai",
           "columns": {"messages": "messages", "chosen": "chosen", "rejected": "rejected"}})"},
      {kPair,
       {{"conversations", kShareGpt}, {"chosen", kShareGptAnswer}, {"rejected", kShareGptAnswer}},
       R"({"ranking": true, "formatting": "sharegpt",
           "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}})"},
  };
  return forms;
}

bool has_shape(const ordered_json& value, Shape shape) {
  const auto begins_with = [&](const char* key) {
    return value.is_array() && !value.empty() && value[0].is_object() && value[0].contains(key);
  };
  switch (shape) {
    case Shape::kString:
      return value.is_string();
    case Shape::kFlag:
      return value.is_boolean();
    case Shape::kChat:
      return begins_with("role");
    case Shape::kShareGpt:
      return begins_with("from");
    case Shape::kMessage:
      return value.is_object() && value.contains("role");
    case Shape::kShareGptAnswer:
      return value.is_object() && value.contains("from");
  }
  throw std::logic_error("a column of no shape");
}

/// Returns a list of messages.
const ordered_json& list_of(const ordered_json& row, const char* column, const std::string& place) {
  const auto value = row.find(column);
  if (value != row.end() && value->is_array() && !value->empty()) return *value;
  throw RowError(fmt::format("{}: {} is {}; wanted is a list of messages", place, column,
                             value == row.end()  ? "missing"
                             : value->is_array() ? "an empty list"
                                                 : value->type_name()));
}

/// Returns the only message at and after `begin`.
const ordered_json& answer_in(const ordered_json& row, const char* column, size_t begin,
                              const std::string& place) {
  const ordered_json& list = list_of(row, column, place);
  if (list.size() == begin + 1) return list[begin];
  throw RowError(fmt::format(
      "{}: {} has {} after the question; a pair has one answer on each side", place, column,
      counted(static_cast<int64_t>(list.size() - std::min(begin, list.size())), "message")));
}

ordered_json with_prompt_and_completion(const ordered_json& row, const std::string& place) {
  ordered_json joined = row;
  ordered_json messages = list_of(row, "prompt", place);
  for (ordered_json& message : messages) {
    if (!message.is_object() || message.value("role", ordered_json()) != "assistant") continue;
    message.erase("weight");
    message["train"] = false;
  }
  for (const ordered_json& message : list_of(row, "completion", place)) {
    messages.push_back(message);
  }
  joined.erase("prompt");
  joined.erase("completion");
  joined["prompt + completion"] = std::move(messages);
  return joined;
}

ordered_json with_common_messages(const ordered_json& row, const std::string& place) {
  const ordered_json& chosen = list_of(row, "chosen", place);
  const ordered_json& rejected = list_of(row, "rejected", place);
  size_t num_common = 0;
  while (num_common < std::min(chosen.size(), rejected.size()) &&
         chosen[num_common] == rejected[num_common]) {
    ++num_common;
  }
  // Equal answers: the question is all before them.
  num_common = std::min(num_common, std::min(chosen.size(), rejected.size()) - 1);
  ordered_json common = ordered_json::array();
  for (size_t i = 0; i < num_common; ++i) common.push_back(chosen[i]);
  ordered_json joined = row;
  joined["chosen"] = answer_in(row, "chosen", num_common, place);
  joined["rejected"] = answer_in(row, "rejected", num_common, place);
  // Many such rows repeat the question as a text.
  const ordered_json prompt = row.value("prompt", ordered_json());
  const bool repeats = std::ranges::any_of(common, [&](const ordered_json& message) {
    return message.is_object() && message.value("content", ordered_json()) == prompt;
  });
  if (!prompt.is_null() && prompt != "" && !repeats && prompt != common) {
    throw RowError(fmt::format(
        "{}: prompt differs from the messages that chosen and rejected begin with", place));
  }
  joined["prompt"] = std::move(common);
  return joined;
}

}  // namespace

std::optional<KnownColumns> known_columns(const ordered_json& row, RowKind kind) {
  if (kind == RowKind::kQuestion) kind = RowKind::kAnswer;
  for (const Form& form : forms()) {
    const bool fits =
        form.kind == kind && std::ranges::all_of(form.columns, [&](const NamedColumn& column) {
          const auto value = row.find(column.name);
          return value != row.end() && has_shape(*value, column.shape);
        });
    if (!fits) continue;
    ordered_json entry = parse_ordered_json(form.entry, "known columns");
    std::vector<std::string> names;
    for (const NamedColumn& column : form.columns) names.emplace_back(column.name);
    if (kind != RowKind::kText) {
      for (const char* name : {"system", "tools", "images", "videos"}) {
        const bool is_there = row.contains(name);
        // A later row may have a system text or tools. Pictures change the model of a run.
        const bool is_media =
            name == std::string_view("images") || name == std::string_view("videos");
        if (is_there || !is_media) entry["columns"][name] = name;
        if (is_there) names.emplace_back(name);
      }
    }
    return KnownColumns{entry.dump(), form.joined, fmt::format("{}", fmt::join(names, ", "))};
  }
  return std::nullopt;
}

ordered_json joined_row(const ordered_json& row, Joined joined, const std::string& place) {
  switch (joined) {
    case Joined::kNothing:
      return row;
    case Joined::kPromptAndCompletion:
      return with_prompt_and_completion(row, place);
    case Joined::kAnswersInLists: {
      ordered_json single = row;
      for (const char* column : {"chosen", "rejected"}) {
        single[column] = answer_in(row, column, 0, place);
      }
      return single;
    }
    case Joined::kCommonMessages:
      return with_common_messages(row, place);
  }
  throw std::logic_error("a way to join columns that has no code");
}

}  // namespace longspan
