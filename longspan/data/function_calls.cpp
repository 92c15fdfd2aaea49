#include "longspan/data/function_calls.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/data/bad_rows.h"
#include "longspan/input/json_text.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

// json.dumps puts a space behind each comma and colon; nlohmann's dump does not.
std::string python_json(const ordered_json& value) {
  std::string text;
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", python_json_string(key),
                          python_json(item));
    }
    return "{" + text + "}";
  }
  if (value.is_array()) {
    for (const auto& item : value) text += (text.empty() ? "" : ", ") + python_json(item);
    return "[" + text + "]";
  }
  return value.dump();
}

}  // namespace

std::string python_json_string(const std::string& text) { return ordered_json(text).dump(); }

std::vector<FunctionCall> parse_function_calls(const std::string& content,
                                               const std::string& place) {
  ordered_json calls = try_parse_ordered_json(content).value_or(nullptr);
  if (calls.is_object()) calls = ordered_json::array({calls});
  bool well_formed = calls.is_array();
  std::vector<FunctionCall> parsed;
  for (const auto& call : calls) {
    well_formed = well_formed && call.is_object() && call.contains("arguments") &&
                  call.contains("name") && call.at("name").is_string();
    if (!well_formed) break;
    parsed.push_back({call.at("name").get<std::string>(), python_json(call.at("arguments"))});
  }
  if (!well_formed || parsed.empty()) {
    throw RowError(fmt::format(
        "{}: a function call must be JSON: {{\"name\": ..., \"arguments\": "
        "{{...}}}}, or a list of such, with at most {} lists and objects within each other",
        place, kMaxJsonDepth));
  }
  return parsed;
}

std::vector<std::pair<std::string, std::string>> argument_texts(const FunctionCall& call,
                                                                const std::string& place) {
  const ordered_json arguments = try_parse_ordered_json(call.arguments).value_or(nullptr);
  if (!arguments.is_object()) {
    throw RowError(fmt::format(
        "{}: the arguments of {} must be a JSON object, of which this template writes each one",
        place, call.name));
  }
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [key, value] : arguments.items()) {
    texts.emplace_back(key, value.is_string() ? value.get<std::string>() : python_json(value));
  }
  return texts;
}

}  // namespace longspan
