// Suggests an entry of dataset_info.json for rows that do not fit theirs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/data/conversation_format.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

/// Returns the first of `names` that the object has; "" for none.
std::string first_of(const ordered_json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (object.contains(name)) return name;
  }
  return "";
}

bool is_messages(const ordered_json& value) {
  return value.is_array() && !value.empty() && value[0].is_object();
}

std::string role_of(const ordered_json& messages, const std::string& role_tag,
                    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const ordered_json& message : messages) {
      if (message.is_object() && message.value(role_tag, ordered_json()) == name) return name;
    }
  }
  return *names.begin();
}

}  // namespace

std::string suggested_entry(const DatasetEntry& entry, const ordered_json& row) {
  ordered_json suggestion = {{"file_name", entry.file_name}};
  const RowParts parts = parts_of(entry.kind);
  if (parts.pair) suggestion["ranking"] = true;
  const auto or_unknown = [](const std::string& name) {
    return name.empty() ? std::string("<column>") : name;
  };
  std::string messages = first_of(row, {"messages", "conversations", "conversation"});
  for (const auto& [name, value] : row.items()) {
    const bool is_side = name == "chosen" || name == "rejected";
    if (messages.empty() && is_messages(value) && !is_side) messages = name;
  }
  if (!messages.empty() && is_messages(row.at(messages)) && !parts.text) {
    const ordered_json& list = row.at(messages);
    const std::string role = or_unknown(first_of(list[0], {"role", "from", "speaker"}));
    const std::string content = or_unknown(first_of(list[0], {"content", "value", "text"}));
    const std::string user = role_of(list, role, {"user", "human", "prompter", "Human", "User"});
    const std::string assistant =
        role_of(list, role, {"assistant", "gpt", "bot", "model", "Assistant"});
    const bool is_openai =
        role == "role" && content == "content" && user == "user" && assistant == "assistant";
    suggestion["formatting"] = is_openai ? "openai" : "sharegpt";
    suggestion["columns"] = {{"messages", messages}};
    if (row.contains("tools")) suggestion["columns"]["tools"] = "tools";
    if (!is_openai) {
      suggestion["tags"] = {{"role_tag", role},
                            {"content_tag", content},
                            {"user_tag", user},
                            {"assistant_tag", assistant},
                            {"system_tag", "system"}};
    }
  } else if (parts.text) {
    suggestion["columns"] = {
        {"prompt", or_unknown(first_of(row, {"text", "content", "document", "prompt", "body"}))}};
    return fmt::format("\"{}\": {}", entry.name, suggestion.dump());
  } else {
    const std::string query = first_of(row, {"input", "context"});
    suggestion["columns"] = {
        {"prompt", or_unknown(first_of(row, {"instruction", "prompt", "question", "query",
                                             "problem", "user", "input"}))}};
    if (!query.empty() && suggestion["columns"]["prompt"] != query) {
      suggestion["columns"]["query"] = query;
    }
    if (parts.answer) {
      suggestion["columns"]["response"] = or_unknown(
          first_of(row, {"output", "response", "answer", "completion", "solution", "assistant"}));
    }
  }
  if (parts.pair) {
    suggestion["columns"]["chosen"] =
        or_unknown(first_of(row, {"chosen", "better", "preferred", "accepted", "winner"}));
    suggestion["columns"]["rejected"] =
        or_unknown(first_of(row, {"rejected", "worse", "dispreferred", "refused", "loser"}));
  }
  if (parts.desirability) {
    std::string tag = first_of(row, {"kto_tag", "label", "desirable", "good"});
    for (const auto& [name, value] : row.items()) {
      if (tag.empty() && value.is_boolean()) tag = name;
    }
    suggestion["columns"]["kto_tag"] = or_unknown(tag);
  }
  return fmt::format("\"{}\": {}", entry.name, suggestion.dump());
}

}  // namespace longspan
