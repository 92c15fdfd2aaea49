#include "longspan/data/function_calls.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "longspan/data/bad_rows.h"
#include "longspan/input/json_text.h"
#include "longspan/text/shown.h"

namespace longspan {

using nlohmann::ordered_json;

// Python's json.dumps puts a space after each comma and colon; nlohmann's dump does not.
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

std::string python_json_string(const std::string& text) { return ordered_json(text).dump(); }

namespace {

/// Refuses numbers beyond 64 bits: the parser has made floats of such integers, which a template
/// would print with other digits.
void require_exact_integers(const ordered_json& value, const std::string& place) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (value.is_number_float() && std::abs(value.get<double>()) >= kTwoTo63) {
    throw RowError(
        fmt::format("{}: the number {} is beyond 64 bits, and an integer of that size loses "
                    "digits; write it as text, in quotes",
                    place, value.dump()));
  }
  if (!value.is_structured()) return;
  for (const auto& item : value) require_exact_integers(item, place);
}

}  // namespace

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
    require_exact_integers(call.at("arguments"), place);
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

FunctionCall read_function(const ordered_json& function, const std::string& place,
                           UnreadKeys& unread) {
  const auto name = function.is_object() ? function.find("name") : function.end();
  if (name == function.end() || !name->is_string()) {
    throw RowError(fmt::format("{}: wanted is {{\"name\": text, \"arguments\": ...}}, found {}",
                               place, shortened(function.dump(), 60)));
  }
  ordered_json arguments = function.value("arguments", ordered_json());
  if (arguments.is_string()) {
    const std::string text = arguments.get<std::string>();
    // OpenAI writes missing arguments as an empty text.
    arguments = text.empty() ? ordered_json::object()
                             : try_parse_ordered_json(text).value_or(ordered_json());
  }
  if (!arguments.is_object()) {
    throw RowError(fmt::format(
        "{}: the arguments of {} must be a JSON object, or one as text with at most {} lists and "
        "objects within each other; they are {}",
        place, shortened(name->get<std::string>(), 60), kMaxJsonDepth,
        function.contains("arguments") ? shortened(function.at("arguments").dump(), 60)
                                       : "missing"));
  }
  require_exact_integers(arguments, place);
  unread.add(function, {"name", "arguments"}, "call");
  return {name->get<std::string>(), python_json(arguments)};
}

std::vector<FunctionCall> read_tool_calls(const ordered_json& calls, const std::string& place,
                                          UnreadKeys& unread) {
  if (!calls.is_array()) {
    throw RowError(fmt::format("{} is not a list of calls but {}", place, calls.type_name()));
  }
  std::vector<FunctionCall> parsed;
  for (size_t i = 0; i < calls.size(); ++i) {
    const ordered_json& call = calls[i];
    const std::string where = fmt::format("{}, call {}", place, i + 1);
    if (!call.is_object() || !call.contains("function")) {
      parsed.push_back(read_function(call, where, unread));
      continue;
    }
    if (call.value("type", ordered_json("function")) != "function") {
      throw RowError(fmt::format("{} is of type {}; calls of functions are read", where,
                                 shortened(call.at("type").dump(), 60)));
    }
    parsed.push_back(read_function(call.at("function"), where, unread));
    unread.add(call, {"id", "type", "function"}, "call");
    const auto id = call.find("id");
    if (id == call.end() || id->is_null()) continue;
    if (!id->is_string()) {
      throw RowError(fmt::format("{}: id is not text but {}", where, id->type_name()));
    }
    parsed.back().id = id->get<std::string>();
  }
  return parsed;
}

std::string read_tools(const ordered_json& tools, const std::string& place) {
  if (tools.is_null()) return "";
  ordered_json list = tools;
  if (tools.is_string()) {
    const std::string text = tools.get<std::string>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return "";
    list = try_parse_ordered_json(text).value_or(ordered_json());
  }
  if (!list.is_array()) {
    throw RowError(fmt::format(
        "{}: tools are a list, or one as JSON text with at most {} lists and objects within each "
        "other; found {}",
        place, kMaxJsonDepth, shortened(tools.dump(), 60)));
  }
  if (list.empty()) return "";
  require_exact_integers(list, place);
  ordered_json whole = ordered_json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const ordered_json& tool = list[i];
    const bool wrapped = tool.is_object() && tool.value("type", ordered_json()) == "function";
    const ordered_json function = wrapped ? tool.value("function", ordered_json()) : tool;
    if (!function.is_object() || !function.value("name", ordered_json()).is_string()) {
      throw RowError(fmt::format(
          "{}: tool {} is {}; wanted is {{\"type\": \"function\", \"function\": {{\"name\": ..., "
          "\"description\": ..., \"parameters\": ...}}}}, or the object of \"function\" alone",
          place, i + 1, shortened(tool.dump(), 60)));
    }
    whole.push_back(wrapped ? tool : ordered_json{{"type", "function"}, {"function", tool}});
  }
  return python_json(whole);
}

std::vector<std::pair<std::string, std::string>> argument_texts(const FunctionCall& call,
                                                                const std::string& place) {
  const ordered_json arguments = try_parse_ordered_json(call.arguments).value_or(nullptr);
  if (!arguments.is_object()) {
    throw RowError(
        fmt::format("{}: the arguments of {} must be a JSON object, since this template writes "
                    "each argument by itself",
                    place, call.name));
  }
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [key, value] : arguments.items()) {
    texts.emplace_back(key, value.is_string() ? value.get<std::string>() : python_json(value));
  }
  return texts;
}

}  // namespace longspan
