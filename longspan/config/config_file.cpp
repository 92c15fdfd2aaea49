// Reads a configuration file and overrides into a Config.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/config/assign_key.h"
#include "longspan/config/checks.h"
#include "longspan/config/config.h"
#include "longspan/config/deepspeed.h"
#include "longspan/config/fsdp.h"
#include "longspan/config/keys.h"
#include "longspan/config/other_formats.h"
#include "longspan/config/overrides.h"
#include "longspan/config/problem_place.h"
#include "longspan/config/v1_format.h"
#include "longspan/input/json_text.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"
#include "longspan/text/yaml.h"

namespace longspan {
namespace {

using nlohmann::json;

/// Problems that are reported for a file and its overrides. Each may cost a search for the nearest
/// key. A file in another program's format would have too many.
constexpr size_t kMostProblems = 50;
constexpr size_t kShownBytes = 60;  // of a key of any length

bool is_neutral(const UnsupportedKey& key, const json& value) {
  if (value.is_null() || (key.neutral.empty() && value == false)) return true;
  if (key.neutral.empty()) return false;
  return std::ranges::any_of(split_values(key.neutral), [&](const std::string& neutral) {
    return parse_json(neutral, std::string(key.name)) == value;
  });
}

/// What has been read so far.
struct Reading {
  Config config;
  std::vector<std::string> idle;                                  // keys without effect
  std::vector<std::pair<std::string_view, std::string>> renamed;  // new name, given name
  std::vector<std::pair<const OppositeKey*, bool>> opposites;     // the value of the key `of`
  std::set<std::string, std::less<>> given;                       // supported keys with a value
};

const Key& key_named(std::string_view name) {
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.name == name) return key;
    }
  }
  throw std::logic_error(fmt::format("the table has no key {}", name));
}

/// Takes one `key: value`. Returns what is wrong with it, or "".
std::string take(Reading& reading, const std::string& name, const json& value) {
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.name != name) continue;
      if (!value.is_null()) reading.given.insert(name);
      return assign_key(reading.config, key, value);
    }
  }
  for (const IdleKey& key : idle_keys()) {
    if (key.name != name) continue;
    if (!value.is_null()) reading.idle.push_back(name);
    return {};
  }
  for (const OppositeKey& key : opposite_keys()) {
    if (key.name != name) continue;
    if (value.is_null()) return {};
    Config taken;
    const Key& other = key_named(key.of);
    const std::string problem = assign_key(taken, other, value);
    if (!problem.empty()) return fmt::format("{}, the opposite of {}", name, problem);
    reading.opposites.emplace_back(&key, !std::get<FieldOf<bool>>(other.field).in(taken));
    return {};
  }
  for (const RenamedKey& key : renamed_keys()) {
    if (key.name != name) continue;
    if (value.is_null()) return {};
    reading.renamed.emplace_back(key.today, name);
    const std::string problem = take(reading, std::string(key.today), value);
    return problem.empty() ? problem : fmt::format("{}, now {}", name, problem);
  }
  for (const UnsupportedKey& key : unsupported_keys()) {
    if (key.name != name) continue;
    if (is_neutral(key, value)) return {};
    if (key.of_generation) {
      return fmt::format(
          "{}: {} is for `longspan chat` and `longspan generate`, not for training; give it there "
          "and remove it here",
          name, shown_value(value));
    }
    return fmt::format("{}: {} is known but not supported{}{}", name, shown_value(value),
                       key.remedy.empty() ? "; remove it" : ": ", key.remedy);
  }
  const std::string nearest = nearest_key(name);
  return fmt::format("unknown key {}; {}", shortened(name, kShownBytes),
                     nearest.empty() ? "`longspan help train` names all keys"
                                     : "the nearest known key is " + nearest);
}

/// Applies the values of opposite keys. Returns the contradictions between two keys.
std::vector<std::string> settle_opposites(Reading& reading) {
  std::vector<std::string> problems;
  for (const auto& [key, value] : reading.opposites) {
    bool& now = std::get<FieldOf<bool>>(key_named(key->of).field).in(reading.config);
    if (reading.given.contains(key->of) && now != value) {
      problems.push_back(fmt::format("{}: {} and {}: {} contradict each other; keep one", key->name,
                                     !value, key->of, now));
    } else if (now != value) {
      reading.config.notes.push_back(
          fmt::format("{}: {} was taken as {}: {}.", key->name, !value, key->of, value));
    }
    now = value;
    reading.given.emplace(key->of);
  }
  reading.opposites.clear();
  return problems;
}

/// Takes out of the configuration of a run that only answers what is for training.
void settle_without_training(Config& config) {
  // Nothing goes on from a checkpoint, so results in output_dir are those of another run.
  if (config.output.resume_from_checkpoint.empty()) config.output.resume_from_checkpoint = "false";
  DataSettings& data = config.data;
  if (data.dataset.empty() || data.eval_dataset.empty()) return;
  const DataSettings defaults;
  std::vector<std::string_view> idle;
  const auto clear = [&](std::string_view name, auto DataSettings::* member) {
    if (data.*member == defaults.*member) return;
    data.*member = defaults.*member;
    idle.push_back(name);
  };
  clear("dataset", &DataSettings::dataset);
  clear("streaming", &DataSettings::streaming);
  clear("buffer_size", &DataSettings::buffer_size);
  clear("tokenized_path", &DataSettings::tokenized_path);
  config.notes.push_back(
      fmt::format("Without do_train: true, the rows of dataset are not read; of no effect: {}.",
                  fmt::join(idle, ", ")));
}

/// Applies keys that are another form of a key, and collects the notes for the user.
void settle(Reading& reading) {
  Config& config = reading.config;
  if (config.model.use_cpu && wanted_device_of(config.model) == WantedDevice::kAuto)
    config.model.device = "cpu";
  if (sampling_strategy_of(config.method) == SamplingStrategy::kSequential) {
    config.method.disable_shuffling = true;
  }
  if (config.optimization.use_muon && config.optimization.optim == OptimizationSettings().optim) {
    config.optimization.optim = "muon_match_rms_adamw";
  }
  if (config.method.generation.predict_with_generate && !config.method.do_train) {
    settle_without_training(config);
  }
  for (const auto& [today, given] : reading.renamed) {
    config.notes.push_back(fmt::format("{} is called {} now; it was taken as that.", given, today));
  }
  if (!config.output.metrics_file.empty() && !config.method.do_train) {
    config.notes.push_back("metrics_file has the numbers of training; without it there is none.");
  }
  if (!wants_tensorboard(config.output) && !config.output.logging_dir.empty()) {
    config.notes.push_back(
        "logging_dir is for TensorBoard's files; without report_to: tensorboard there are none.");
  }
  if (config.output.report_to == OutputSettings().report_to && !config.output.run_name.empty() &&
      services_of(config.output).empty()) {
    config.notes.push_back("run_name is for report_to, which names no service.");
  }
  std::vector<std::string>& idle = reading.idle;
  if (config.optimization.data_seed == config.optimization.seed) idle.emplace_back("data_seed");
  std::ranges::sort(idle);
  idle.erase(std::unique(idle.begin(), idle.end()), idle.end());
  if (!idle.empty()) {
    config.notes.push_back(
        fmt::format("Accepted, without effect here: {} (`longspan help {}` "
                    "says why).",
                    fmt::join(idle, ", "), idle[0]));
  }
}

json read_file(const std::string& path) {
  const std::string text = read_text_file(path, "configuration file");
  json values;
  try {
    // JSON readers silently keep the last of two equal keys, so those are refused. The YAML reader
    // refuses them itself.
    values = path.ends_with(".json") ? parse_json_of_single_keys(text, path)
                                     : parse_json(yaml_to_json(text, path), path);
  } catch (const UserError&) {
    if (path.ends_with(".json")) throw;
    const std::string problem = line_with_equals(text);
    if (problem.empty()) throw;
    throw UserError(fmt::format("{}, {}", path, problem));
  }
  if (values.is_null()) values = json::object();
  if (!values.is_object()) {
    const std::string problem = line_with_equals(text);
    throw UserError(problem.empty() ? fmt::format("{}: wanted are lines of `key: value`", path)
                                    : fmt::format("{}, {}", path, problem));
  }
  return values;
}

/// Returns the value of an override.
json value_of(const Override& item) {
  if (!item.has_value) return true;  // a switch without a value means true
  const std::string place = item.key + "=" + item.value;
  return parse_json(yaml_to_json(item.value, place), place);
}

/// Puts keys of this program in the place of v1's keys, also of those among the overrides. Returns
/// what is wrong with them.
std::vector<std::string> take_v1(Config& config, json& values, std::vector<Override>& overrides,
                                 bool trains) {
  std::erase_if(overrides, [&](const Override& item) {
    if (!is_v1_key(item.key)) return false;
    std::string pointer = "/" + item.key;
    std::ranges::replace(pointer, '.', '/');
    const json value = value_of(item);
    try {
      values[json::json_pointer(pointer)] = value;
    } catch (const json::exception&) {
      throw UserError(fmt::format("{}: the file has another value than a section there", item.key));
    }
    return true;
  });
  V1Translation translation = translate_v1(values, trains);
  values = parse_json(translation.values, "v1");
  config.data.v1_rows = true;
  std::ranges::move(translation.notes, std::back_inserter(config.notes));
  return std::move(translation.problems);
}

Config load(const std::string& path, const std::vector<std::string>& words,
            const std::function<std::vector<std::string>(Config&)>& check, bool trains = true) {
  Reading reading;
  std::vector<std::string> problems, names;
  const auto note = [&](const std::string& where, const std::string& problem) {
    if (!problem.empty()) problems.push_back(fmt::format("{}: {}", where, problem));
  };
  const auto is_enough = [&] { return problems.size() >= kMostProblems; };
  json values = path.empty() ? json::object() : read_file(path);
  std::vector<Override> overrides = read_overrides(words);
  for (const auto& [name, value] : values.items()) names.push_back(name);
  if (is_v1_format(names)) {
    for (const std::string& problem : take_v1(reading.config, values, overrides, trains)) {
      note(path, problem);
    }
  } else if (const std::string format = other_format(names); !format.empty()) {
    throw UserError(fmt::format("{}: {}", path, format));
  }
  std::set<std::string_view> replaced;
  for (const Override& item : overrides) replaced.insert(item.key);
  for (const OppositeKey& key : opposite_keys()) {
    if (replaced.contains(key.name)) replaced.insert(key.of);
    if (replaced.contains(key.of)) replaced.insert(key.name);
  }
  for (const auto& [name, value] : values.items()) {
    // Skips a key that an override replaces, so that the command line can correct a refused key.
    if (replaced.contains(name)) continue;
    note(path, take(reading, name, value));
    if (is_enough()) break;
  }
  for (const auto& [today, given] : reading.renamed) {
    if (values.contains(today)) {
      note(path,
           fmt::format("{} and {}, its old name, are both given; keep {}", today, given, today));
    }
  }
  for (const std::string& problem : settle_opposites(reading)) note(path, problem);
  GivenKeys given{std::exchange(reading.given, {}), {}};
  for (const Override& item : overrides) {
    if (is_enough()) break;
    note("command line", take(reading, item.key, value_of(item)));
  }
  for (const std::string& problem : settle_opposites(reading)) note("command line", problem);
  given.in_words = std::move(reading.given);
  for (const std::string& key : given.in_words) given.in_file.erase(key);
  if (problems.empty()) {
    settle(reading);
    for (const std::string& problem : check(reading.config)) {
      note(place_of(problem, path, given), problem);
    }
  }
  if (problems.size() == 1) throw UserError(problems[0]);
  if (!problems.empty()) {
    throw UserError(fmt::format("{}{} problems with the configuration\n  {}",
                                is_enough() ? "at least " : "", problems.size(),
                                fmt::join(problems, "\n  ")));
  }
  return std::move(reading.config);
}

/// Applies the forms in which other programs say what processes divide.
std::vector<std::string> apply_sharding(Config& config) {
  std::vector<std::string> problems = apply_deepspeed(config);
  std::ranges::move(apply_fsdp(config), std::back_inserter(problems));
  return problems;
}

}  // namespace

Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   TrainingRows rows) {
  return load(path, overrides, [rows](Config& config) {
    std::vector<std::string> problems = apply_sharding(config);
    return problems.empty() ? check_config(config, rows) : problems;
  });
}

Config load_session_config(const std::string& path, const std::vector<std::string>& overrides) {
  return load(path, overrides, [](Config& config) {
    std::vector<std::string> problems = apply_sharding(config);
    return problems.empty() ? check_session_config(config) : problems;
  });
}

Config load_export_config(const std::string& path, const std::vector<std::string>& overrides) {
  return load(
      path, overrides, [](Config& config) { return check_export_config(config); },
      /*trains=*/false);
}

}  // namespace longspan
