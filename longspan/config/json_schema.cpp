// The table of keys as a JSON schema, by which editors complete and check a configuration file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "longspan/config/keys.h"
#include "longspan/config/without_optional.h"
#include "longspan/input/json_text.h"

namespace longspan {

namespace {

using Json = nlohmann::ordered_json;

Json type_of(const Field& field) {
  return std::visit(
      [](const auto& member) -> Json {
        using Value =
            typename WithoutOptional<typename std::decay_t<decltype(member)>::Value>::Type;
        if constexpr (std::is_same_v<Value, std::string>) return "string";
        if constexpr (std::is_same_v<Value, bool>) return "boolean";
        if constexpr (std::is_same_v<Value, double>) return "number";
        return "integer";
      },
      field);
}

Json bounded(const Key& key, Json type) {
  Json schema = {{"type", std::move(type)}};
  if (std::isfinite(key.least)) {
    schema[key.above_least ? "exclusiveMinimum" : "minimum"] = key.least;
  }
  if (std::isfinite(key.most)) {
    schema[key.below_most ? "exclusiveMaximum" : "maximum"] = key.most;
  }
  if (key.not_zero) schema["not"] = {{"const", 0}};
  return schema;
}

/// A pattern for numbers and booleans in quotes that the program reads.
Json in_quotes(const Key& key, const std::string& type) {
  const std::string sign = key.least >= 0 ? "\\+?" : "[+-]?";
  const bool from_one = key.least >= 1 || key.above_least || key.not_zero;
  const std::string whole = from_one ? "0*[1-9][0-9]*" : "[0-9]+";
  std::string pattern;
  if (type == "boolean") {
    pattern = "true|True|TRUE|false|False|FALSE|\\+?0*[01]";
  } else if (key.steps) {
    pattern = "\\+?(" + whole + "|0*\\.[0-9]+|[0-9](\\.[0-9]*)?[eE]-[0-9]+)";
  } else if (type == "integer") {
    pattern = sign + whole + "(\\.0*)?([eE]\\+?[0-9]+)?";
  } else {
    pattern = sign + "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?";
  }
  return {{"type", "string"}, {"pattern", "^\\s*(" + pattern + ")\\s*$"}};
}

/// A pattern for words with commas between them, or none.
Json list_of(const Key& key) {
  const std::string word = fmt::format(" *({}) *", fmt::join(key.choices, "|"));
  return {{"type", "string"}, {"pattern", fmt::format("^({0}(,{0})*)?$", word)}};
}

/// A schema of the accepted values.
Json values_of(const Key& key) {
  std::vector<Json> any;
  if (!key.choices.empty()) {
    Json words = Json::array();
    for (const std::string_view word : key.choices) words.push_back(word);
    // YAML 1.1 reads a bare `no` as false.
    if (key.choices[0] == "no") words.push_back(false);
    if (key.truth) words.insert(words.end(), {true, false});
    any.push_back({{"enum", words}});
    if (key.list) {
      any.push_back(list_of(key));
      any.push_back({{"type", "array"}, {"items", {{"enum", words}}}});
    }
  } else if (key.steps) {
    Json share = bounded(key, "number");
    share["exclusiveMaximum"] = 1;
    share.erase("maximum");
    any = {{{"type", "integer"}, {"minimum", key.above_least ? 1 : 0}, {"maximum", key.most}},
           std::move(share)};
    any.push_back(in_quotes(key, "number"));
  } else {
    const Json type = type_of(key.field);
    any.push_back(bounded(key, type));
    if (!key.zero_word.empty()) any.push_back({{"enum", {key.zero_word}}});
    if (type == "boolean") any.push_back({{"enum", {0, 1}}});
    if (type != "string") any.push_back(in_quotes(key, type));
    if (key.truth) any.push_back({{"type", "boolean"}});
    if (key.list) any.push_back({{"type", "array"}, {"items", {{"type", "string"}}}});
  }
  any.push_back({{"type", "null"}});
  return {{"anyOf", any}};
}

Json value_of_text(const std::string& text) {
  return try_parse_ordered_json(text).value_or(Json(text));
}

}  // namespace

std::string json_schema() {
  Json properties = Json::object();
  const std::vector<KeyDescription> descriptions = describe_keys();
  size_t number = 0;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      const KeyDescription& description = descriptions[number++];
      Json schema = values_of(key);
      schema["description"] = fmt::format(
          "{}{}", key.help,
          description.stages.empty() ? "" : fmt::format(" (stages: {})", description.stages));
      if (!description.default_value.empty()) {
        schema["default"] = value_of_text(description.default_value);
      }
      properties[std::string(key.name)] = std::move(schema);
    }
  }
  for (const IdleKey& key : idle_keys()) {
    properties[std::string(key.name)] = {
        {"description", fmt::format("Accepted without effect: {}.", key.reason)}};
  }
  for (const OppositeKey& key : opposite_keys()) {
    Json schema = properties[std::string(key.of)];
    schema["description"] = key.help;
    schema.erase("default");
    properties[std::string(key.name)] = std::move(schema);
  }
  for (const RenamedKey& key : renamed_keys()) {
    Json schema = properties[std::string(key.today)];
    schema["description"] = fmt::format("It is called {} now.", key.today);
    schema["deprecated"] = true;
    properties[std::string(key.name)] = std::move(schema);
  }
  for (const UnsupportedKey& key : unsupported_keys()) {
    Json values = {nullptr};
    if (key.neutral.empty()) {
      values.push_back(false);
    } else {
      for (const std::string& value : split_values(key.neutral)) {
        values.push_back(parse_ordered_json(value, std::string(key.name)));
      }
    }
    properties[std::string(key.name)] = {
        {"enum", values},
        {"description",
         key.of_generation
             ? "A key of `longspan chat` and `longspan generate`."
             : fmt::format("Not supported{}{}.", key.remedy.empty() ? "" : ": ", key.remedy)},
        {"deprecated", true}};
  }
  const Json schema = {
      {"$schema", "http://json-schema.org/draft-07/schema#"},
      {"title", "longspan train"},
      {"description", "A configuration file of Longspan, with LLaMA-Factory's keys."},
      {"type", "object"},
      {"additionalProperties", false},
      {"properties", std::move(properties)}};
  return schema.dump(1) + "\n";
}

}  // namespace longspan
