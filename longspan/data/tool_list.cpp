#include "longspan/data/tool_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/data/function_calls.h"
#include "longspan/input/json_text.h"
#include "longspan/text/chat_template.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::ordered_json;

std::string with(std::string_view text, std::string_view place, std::string_view value) {
  std::string whole(text);
  const size_t at = whole.find(place);
  return at == std::string::npos ? whole : whole.replace(at, place.size(), value);
}

/// Reads one tool for a format that prints its parts as text.
class ToolParts {
 public:
  ToolParts(const ordered_json& function, const std::string& place)
      : function_(function), place_(place), name_(function.at("name").get<std::string>()) {}

  const std::string& name() const { return name_; }
  std::string description() const { return text_of(function_, "description"); }

  /// Returns a line for each argument.
  std::string arguments() const {
    const ordered_json parameters = function_.value("parameters", ordered_json());
    const ordered_json properties =
        parameters.is_object() ? parameters.value("properties", ordered_json()) : ordered_json();
    if (!properties.is_object()) fail("has no parameters.properties, whose arguments are printed");
    const ordered_json required = parameters.value("required", ordered_json::array());
    std::string lines;
    for (const auto& [name, argument] : properties.items()) {
      if (!argument.is_object()) fail(fmt::format("argument {} is no object", name));
      const bool is_required = std::ranges::find(required, ordered_json(name)) != required.end();
      lines += fmt::format("  - {} ({}{}): {}{}{}\n", name, text_of(argument, "type"),
                           is_required ? ", required" : "", text_of(argument, "description"),
                           choices_of(argument), items_of(argument));
    }
    return lines;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw RowError(fmt::format(
        "{}tool {} {}. Leave template out so that the model's own chat template prints the tools, "
        "or mend the tool.",
        place_, shortened(name_, 60), problem));
  }

  std::string text_of(const ordered_json& object, const char* key) const {
    const ordered_json value = object.value(key, ordered_json(""));
    if (value.is_string()) return value.get<std::string>();
    fail(fmt::format("has a {} that is not text: {}", key, shortened(value.dump(), 60)));
  }

  static bool is_empty(const ordered_json& value) {
    return value.is_null() || value == false || value == 0 || value == "" ||
           (value.is_structured() && value.empty());
  }

  std::string choices_of(const ordered_json& argument) const {
    const ordered_json choices = argument.value("enum", ordered_json());
    if (is_empty(choices)) return "";
    std::vector<std::string> words;
    const bool are_texts =
        choices.is_array() &&
        std::ranges::all_of(choices, [&](const auto& word) { return word.is_string(); });
    if (!are_texts) fail("has an enum that is no list of texts");
    for (const ordered_json& word : choices) words.push_back(word.get<std::string>());
    return fmt::format(", should be one of [{}]", fmt::join(words, ", "));
  }

  std::string items_of(const ordered_json& argument) const {
    const ordered_json items = argument.value("items", ordered_json());
    if (is_empty(items)) return "";
    if (!items.is_object()) fail("has items that are no object");
    return fmt::format(", where each item should be {}", text_of(items, "type"));
  }

  const ordered_json& function_;
  const std::string& place_;
  std::string name_;
};

/// Returns JSON as Python's json.dumps(indent=4) writes it.
std::string indented_json(const ordered_json& value) { return value.dump(4); }

}  // namespace

std::string written_tool_list(const ToolFormat& format, const std::string& tools,
                              const LocalTime& time, const std::string& place) {
  std::string text(format.before);
  if (format.has_date()) {
    text = with(text, kDate,
                render_chat_template("{{ strftime_now('%d %b %Y') }}",
                                     ordered_json{{"strftime_now", time.text}}.dump())
                    .text);
  }
  std::vector<std::string> names;
  for (const ordered_json& tool : parse_ordered_json(tools, "tools")) {
    const ordered_json& function = tool.at("function");
    const ToolParts parts(function, place);
    if (!names.empty()) text += format.between;
    names.push_back(parts.name());
    std::string head = with(format.before_each, kToolName, parts.name());
    if (head.find(kToolDescription) != std::string::npos) {
      head = with(head, kToolDescription, parts.description());
    }
    text += head;
    if (format.body == ToolFormat::Body::kArguments) {
      text += parts.arguments();
    } else {
      const ordered_json& body = format.body == ToolFormat::Body::kFunction ? function : tool;
      text += format.indented ? indented_json(body) : python_json(body);
    }
    text += format.after_each;
  }
  return text + with(format.after, kToolNames, fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace longspan
