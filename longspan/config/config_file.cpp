// Configuration file and overrides -> Config.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/config/checks.h"
#include "longspan/config/config.h"
#include "longspan/config/deepspeed.h"
#include "longspan/config/json_text.h"
#include "longspan/config/keys.h"
#include "longspan/config/names.h"
#include "longspan/config/nearest.h"
#include "longspan/config/user_error.h"
#include "longspan/text/yaml.h"

namespace longspan {

namespace {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Each setter says whether the value has the field's type.
bool set(std::string& field, const json& value) {
  if (!value.is_string()) return false;
  field = value.get<std::string>();
  return true;
}
bool set(bool& field, const json& value) {
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
  if (value.is_number_float()) {  // 1e3 is a whole number as well
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

bool in_range(const Key& key, const json& value) {
  if (!value.is_number()) return true;
  const double number = value.get<double>();
  return (key.above_least ? number > key.least : number >= key.least) && number <= key.most;
}

/// Puts a value into the configuration, or says what is wrong with it.
std::string assign(Config& config, const Key& key, json value) {
  if (value.is_null()) return {};  // as if it had not been written
  // YAML readers of version 1.1 take a bare `no` for false; so do people.
  if (value == false && !key.choices.empty() && key.choices[0] == "no") value = "no";
  if (key.truth && value.is_boolean()) value = value == true ? "true" : "false";
  if (key.list && value.is_array()) {
    std::vector<std::string> names;
    for (const json& name : value) {
      if (!name.is_string()) return fmt::format("{}: {} is not a name", key.name, shown(name));
      names.push_back(name.get<std::string>());
    }
    value = fmt::format("{}", fmt::join(names, ","));
  }
  if (!key.choices.empty() && value.is_string()) {
    // An empty list asks for nothing, which is the first choice.
    if (key.list && value == "") value = key.choices[0];
    const auto& text = value.get_ref<const std::string&>();
    for (const std::string& word : key.list ? split_names(text) : std::vector{text}) {
      if (std::ranges::find(key.unbuilt_choices, word) != key.unbuilt_choices.end()) {
        return fmt::format("{}: {} is known but not supported{}{}; {}", key.name, word,
                           key.unbuilt_remedy.empty() ? "" : ": ", key.unbuilt_remedy,
                           what_is_wanted(key));
      }
      if (std::ranges::find(key.choices, word) == key.choices.end()) {
        return fmt::format("{}: there is no {}; {}", key.name, shown(word), what_is_wanted(key));
      }
    }
  }
  const bool right_type =
      std::visit([&](auto member) { return set(config.*member, value); }, key.field);
  if (right_type && in_range(key, value)) return {};
  return fmt::format("{}: {} was given; wanted is {}", key.name, shown(value), what_is_wanted(key));
}

bool is_neutral(const UnbuiltKey& key, const json& value) {
  if (value.is_null() || (key.neutral.empty() && value == false)) return true;
  std::string_view rest = key.neutral;
  while (!rest.empty()) {
    const size_t bar = rest.find('|');
    if (json::parse(rest.substr(0, bar)) == value) return true;
    rest = bar == std::string_view::npos ? std::string_view{} : rest.substr(bar + 1);
  }
  return false;
}

std::string unknown_key(const std::string& name) {
  std::vector<std::string> working, others;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) working.emplace_back(key.name);
  }
  for (const IdleKey& key : idle_keys()) others.emplace_back(key.name);
  for (const UnbuiltKey& key : unbuilt_keys()) others.emplace_back(key.name);
  // A key that works is what was meant, unless another known one is nearer.
  const std::string nearest = nearest_name(name, working), other = nearest_name(name, others);
  const bool other_is_nearer = edit_distance(name, other) < edit_distance(name, nearest);
  return fmt::format("unknown key {}; the nearest known key is {}", name,
                     other_is_nearer ? other : nearest);
}

/// Takes one `key: value`, or says what is wrong with it.
std::string take(Config& config, const std::string& name, const json& value) {
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.name == name) return assign(config, key, value);
    }
  }
  for (const IdleKey& key : idle_keys()) {
    if (key.name == name) return {};
  }
  for (const UnbuiltKey& key : unbuilt_keys()) {
    if (key.name != name) continue;
    if (is_neutral(key, value)) return {};
    return fmt::format("{}: {} is known but not supported{}{}", name, shown(value),
                       key.remedy.empty() ? "; remove it" : ": ", key.remedy);
  }
  return unknown_key(name);
}

json read_file(const std::string& path) {
  const std::string text = read_text_file(path, "configuration file");
  json values = parse_json(path.ends_with(".json") ? text : yaml_to_json(text, path), path);
  if (path.ends_with(".json")) {
    // The parser keeps the last of two equal keys without a word; the reader of YAML refuses them.
    std::set<std::string> seen;
    values = json::parse(text, [&](int depth, json::parse_event_t event, const json& key) {
      if (event == json::parse_event_t::key && depth == 1 &&
          !seen.insert(key.get<std::string>()).second) {
        throw UserError(fmt::format("{}: {} is given twice; keep one", path, shown(key)));
      }
      return true;
    });
  }
  if (values.is_null()) values = json::object();
  if (!values.is_object()) {
    throw UserError(fmt::format("{}: wanted are lines of `key: value`", path));
  }
  return values;
}

struct Override {
  std::string key, value;
  bool has_value = true;
};

std::vector<Override> read_overrides(const std::vector<std::string>& words) {
  std::vector<Override> overrides;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    const bool dashed = word.starts_with("--");
    if (dashed) word.erase(0, 2);
    const size_t equals = word.find('=');
    Override item{word.substr(0, equals),
                  equals == std::string::npos ? "" : word.substr(equals + 1)};
    if (dashed) std::ranges::replace(item.key, '-', '_');
    if (equals == std::string::npos) {
      if (!dashed) {
        throw UserError(fmt::format(
            "cannot read the argument {}: keys are given as key=value or --key value", words[i]));
      }
      item.has_value = i + 1 < words.size() && !words[i + 1].starts_with("--");
      if (item.has_value) item.value = words[++i];
    }
    if (item.key.empty()) throw UserError(fmt::format("no key in the argument {}", words[i]));
    overrides.push_back(std::move(item));
  }
  return overrides;
}

Config load(const std::string& path, const std::vector<std::string>& words,
            std::vector<std::string> (*check)(Config&)) {
  Config config;
  std::vector<std::string> problems;
  const auto note = [&](const std::string& where, const std::string& problem) {
    if (!problem.empty()) problems.push_back(fmt::format("{}: {}", where, problem));
  };
  const json values = read_file(path);
  const std::vector<Override> overrides = read_overrides(words);
  for (const auto& [name, value] : values.items()) {
    // What an override replaces is not looked at: a refused key can be mended from the command
    // line.
    if (std::ranges::find(overrides, name, &Override::key) != overrides.end()) continue;
    note(path, take(config, name, value));
  }
  for (const Override& item : overrides) {
    // A switch without a value is switched on.
    const json value = item.has_value
                           ? json::parse(yaml_to_json(item.value, item.key + "=" + item.value))
                           : json(true);
    note("command line", take(config, item.key, value));
  }
  if (problems.empty()) {
    for (const std::string& problem : check(config)) note(path, problem);
  }
  if (problems.size() == 1) throw UserError(problems[0]);
  if (!problems.empty()) {
    throw UserError(fmt::format("{} problems with the configuration\n  {}", problems.size(),
                                fmt::join(problems, "\n  ")));
  }
  return config;
}

}  // namespace

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return load(path, overrides, [](Config& config) {
    std::vector<std::string> problems = apply_deepspeed(config);
    return problems.empty() ? check_config(config) : problems;
  });
}

Config load_export_config(const std::string& path, const std::vector<std::string>& overrides) {
  return load(path, overrides, [](Config& config) { return check_export_config(config); });
}

}  // namespace longspan
