// Puts values of a configuration file into the fields of keys.
#include "longspan/config/assign_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "longspan/base/names.h"
#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

using nlohmann::json;

constexpr size_t kShownValue = 60;  // bytes of a value of any length

// Each setter returns whether the value has the field's type.
bool set(std::string& field, const json& value) {
  if (!value.is_string()) return false;
  field = value.get<std::string>();
  return true;
}
bool set(bool& field, const json& value) {
  if (value == 0 || value == 1) {
    field = value == 1;
    return true;
  }
  if (!value.is_boolean()) return false;
  field = value.get<bool>();
  return true;
}
bool set(double& field, const json& value) {
  if (!value.is_number()) return false;
  field = value.get<double>();
  return std::isfinite(field);
}
bool set(int64_t& field, const json& value) {
  if (value.is_number_float()) {  // 1e3 is a whole number too
    const double number = value.get<double>();
    if (std::nearbyint(number) != number || std::abs(number) > 9e15) return false;
    field = static_cast<int64_t>(number);
    return true;
  }
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return false;
  field = value.get<int64_t>();
  return true;
}
bool set(int& field, const json& value) {
  int64_t number = 0;
  if (!set(number, value) || number < INT32_MIN || number > INT32_MAX) return false;
  field = static_cast<int>(number);
  return true;
}
template <class T>
bool set(std::optional<T>& field, const json& value) {
  T inner{};
  if (!set(inner, value)) return false;
  field = std::move(inner);
  return true;
}

/// Returns the number or the boolean in quotes, where the key wants one. YAML 1.1 reads 1e-4 as a
/// word, so people write "1e-4". Ignores blanks around it, as Python does.
json without_quotes(const Key& key, const json& value) {
  if (!value.is_string() || !key.choices.empty()) return value;
  const bool is_text = std::holds_alternative<FieldOf<std::string>>(key.field) ||
                       std::holds_alternative<FieldOf<std::optional<std::string>>>(key.field);
  if (is_text) return value;
  std::string_view text = value.get_ref<const std::string&>();
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text.remove_suffix(text.size() - (text.find_last_not_of(kBlanks) + 1));
  for (const auto& [word, truth] : {std::pair("true", true),
                                    {"True", true},
                                    {"TRUE", true},
                                    {"false", false},
                                    {"False", false},
                                    {"FALSE", false}}) {
    if (text == word) return truth;
  }
  int64_t whole = 0;
  double number = 0;
  const char *begin = text.data(), *end = begin + text.size();
  if (text.starts_with('+') && !text.starts_with("+-")) ++begin;
  if (const auto read = std::from_chars(begin, end, whole);
      read.ec == std::errc() && read.ptr == end) {
    return whole;
  }
  if (const auto read = std::from_chars(begin, end, number);
      read.ec == std::errc() && read.ptr == end) {
    return number;
  }
  return value;
}

/// Returns "; the nearest is WORD", or "".
std::string nearest_choice(const Key& key, std::string_view word) {
  const std::string nearest = nearest_name(word, {key.choices.begin(), key.choices.end()});
  return nearest.empty() ? "" : "; the nearest is " + nearest;
}

bool in_range(const Key& key, const json& value) {
  if (!value.is_number()) return true;
  const double number = value.get<double>();
  if (key.steps && number >= 1 && std::nearbyint(number) != number) return false;
  return (key.above_least ? number > key.least : number >= key.least) && number <= key.most;
}

}  // namespace

std::string shown_value(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace), kShownValue);
}

std::string assign_key(Config& config, const Key& key, json value) {
  if (value.is_null()) return {};  // like a key that is not set
  const json given = value;
  value = without_quotes(key, value);
  if (!key.zero_word.empty() && value == key.zero_word) {
    std::visit([&](const auto& member) { set(member.in(config), json(0)); }, key.field);
    return {};
  }
  // YAML 1.1 reads a bare `no` as false, and some users write false.
  if (value == false && !key.choices.empty() && key.choices[0] == "no") value = "no";
  if (key.truth && value.is_boolean()) value = value == true ? "true" : "false";
  if (key.list && value.is_array()) {
    std::vector<std::string> names;
    for (const json& name : value) {
      if (!name.is_string())
        return fmt::format("{}: {} is not a name", key.name, shown_value(name));
      names.push_back(name.get<std::string>());
    }
    value = fmt::format("{}", fmt::join(names, ","));
  }
  if (!key.choices.empty() && value.is_string()) {
    // An empty list means the first choice.
    if (key.list && value == "") value = key.choices[0];
    const auto& text = value.get_ref<const std::string&>();
    for (const std::string& word : key.list ? split_names(text) : std::vector{text}) {
      if (std::ranges::find(key.unsupported_choices, word) != key.unsupported_choices.end()) {
        const std::string remedy = key.unsupported_remedy_of ? key.unsupported_remedy_of(word)
                                                             : std::string(key.unsupported_remedy);
        return fmt::format("{}: {} is known but not supported{}{}{}; {}", key.name, word,
                           remedy.empty() ? "" : ": ", remedy, nearest_choice(key, word),
                           what_is_wanted(key));
      }
      if (std::ranges::find(key.choices, word) == key.choices.end()) {
        return fmt::format("{}: there is no {}{}; {}", key.name, shown_value(word),
                           nearest_choice(key, word), what_is_wanted(key));
      }
    }
  }
  const bool right_type =
      std::visit([&](const auto& member) { return set(member.in(config), value); }, key.field);
  if (right_type && in_range(key, value)) return {};
  return fmt::format("{}: {} was given; wanted is {}", key.name, shown_value(given),
                     what_is_wanted(key));
}

}  // namespace longspan
