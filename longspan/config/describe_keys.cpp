// Describes the table of keys in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <type_traits>

#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/config/without_optional.h"
#include "longspan/registers/stage.h"

namespace longspan {

namespace {

std::string shown_value(const std::string& value) { return value; }
std::string shown_value(bool value) { return value ? "true" : "false"; }
std::string shown_value(int64_t value) { return std::to_string(value); }
std::string shown_value(int value) { return std::to_string(value); }
std::string shown_value(double value) { return fmt::format("{}", value); }
template <class T>
std::string shown_value(const std::optional<T>& value) {
  return value ? shown_value(*value) : "";
}

}  // namespace

std::string what_is_wanted(const Key& key) {
  if (!key.choices.empty()) {
    return fmt::format("{}{}", key.choices.size() > 1 ? "one of: " : "",
                       fmt::join(key.choices, ", "));
  }
  if (key.steps) {
    return fmt::format("a whole number{}, or a share of all steps below 1; at most {}",
                       key.above_least ? ", at least 1" : "", key.most);
  }
  std::string kind = std::visit(
      [](const auto& member) -> std::string {
        using Value =
            typename WithoutOptional<typename std::decay_t<decltype(member)>::Value>::Type;
        if constexpr (std::is_same_v<Value, std::string>) return "text";
        if constexpr (std::is_same_v<Value, bool>) return "true or false";
        if constexpr (std::is_same_v<Value, double>) return "a number";
        return "a whole number";
      },
      key.field);
  if (std::isfinite(key.least)) {
    kind += fmt::format("{} {}", key.above_least ? " above" : ", at least", key.least);
  }
  if (std::isfinite(key.most))
    kind += fmt::format(", {} {}", key.below_most ? "below" : "at most", key.most);
  if (!key.zero_word.empty()) kind += fmt::format(", or {}", key.zero_word);
  return kind;
}

std::string value_of(const Key& key, const Config& config) {
  if (!key.zero_word.empty()) {
    const bool is_word = std::visit(
        [&](const auto& member) {
          if constexpr (std::is_same_v<std::decay_t<decltype(member)>, FieldOf<int>>) {
            return member.in(config) == 0;
          }
          return false;
        },
        key.field);
    if (is_word) return std::string(key.zero_word);
  }
  return std::visit([&](const auto& member) { return shown_value(member.in(config)); }, key.field);
}

std::vector<KeyDescription> describe_keys() {
  const Config defaults;
  std::vector<KeyDescription> lines;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      lines.push_back({std::string(section.title), std::string(key.name), what_is_wanted(key),
                       value_of(key, defaults), std::string(key.help), stages_of_key(key.name)});
    }
  }
  return lines;
}

}  // namespace longspan
