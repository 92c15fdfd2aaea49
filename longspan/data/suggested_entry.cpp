// What dataset_info.json could say about rows that it does not fit.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/data/conversation_format.h"

namespace longspan {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The first of `names` that the object has; "" when it has none.
std::string first_of(const json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (object.contains(name)) return name;
  }
  return "";
}

bool is_messages(const json& value) {
  return value.is_array() && !value.empty() && value[0].is_object();
}

std::string role_of(const json& messages, const std::string& role_tag,
                    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const json& message : messages) {
      if (message.value(role_tag, json()) == name) return name;
    }
  }
  return *names.begin();
}

}  // namespace

std::string suggested_entry(const DatasetEntry& entry, const json& row) {
  ordered_json suggestion = {{"file_name", entry.file_name}};
  const auto or_unknown = [](const std::string& name) {
    return name.empty() ? std::string("<column>") : name;
  };
  std::string messages = first_of(row, {"messages", "conversations", "conversation"});
  for (const auto& [name, value] : row.items()) {
    if (messages.empty() && is_messages(value)) messages = name;
  }
  if (!messages.empty() && is_messages(row.at(messages))) {
    const json& list = row.at(messages);
    const std::string role = or_unknown(first_of(list[0], {"role", "from", "speaker"}));
    const std::string content = or_unknown(first_of(list[0], {"content", "value", "text"}));
    suggestion["formatting"] = "sharegpt";
    suggestion["columns"] = {{"messages", messages}};
    suggestion["tags"] = {
        {"role_tag", role},
        {"content_tag", content},
        {"user_tag", role_of(list, role, {"user", "human", "prompter", "Human", "User"})},
        {"assistant_tag", role_of(list, role, {"assistant", "gpt", "bot", "model", "Assistant"})},
        {"system_tag", "system"}};
  } else {
    const std::string query = first_of(row, {"input", "context"});
    suggestion["columns"] = {
        {"prompt", or_unknown(first_of(row, {"instruction", "prompt", "question", "query",
                                             "problem", "user", "input"}))}};
    if (!query.empty() && suggestion["columns"]["prompt"] != query) {
      suggestion["columns"]["query"] = query;
    }
    suggestion["columns"]["response"] = or_unknown(
        first_of(row, {"output", "response", "answer", "completion", "solution", "assistant"}));
  }
  return fmt::format("\"{}\": {}", entry.name, suggestion.dump());
}

}  // namespace longspan
