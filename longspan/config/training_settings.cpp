#include "longspan/config/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

/// Whether a run of this stage and finetuning type uses the key.
bool applies(const Key& key, const Config& config) {
  return key.finetuning_type.value_or(finetuning_type_of(config.method)) ==
             finetuning_type_of(config.method) &&
         is_for_stage(key.name, stage_of(config.method));
}

}  // namespace

OnResume on_resume(std::string_view key) {
  for (const KeySection& section : key_sections()) {
    const auto found = std::ranges::find(section.keys, key, &Key::name);
    if (found != section.keys.end()) return found->on_resume;
  }
  throw std::logic_error(fmt::format("key {} has no OnResume", key));
}

Settings training_settings(const Config& config) {
  Settings settings;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (key.on_resume == OnResume::kFree || !applies(key, config)) continue;
      const std::string value = value_of(key, config);
      settings.emplace_back(key.name, value.empty() ? "not set" : value);
    }
  }
  // Defaults that depend on other keys.
  set_value(settings, "lora_alpha",
            fmt::format("{}", config.method.lora_alpha.value_or(2 * config.method.lora_rank)));
  set_value(settings, "packing", fmt::format("{}", packs(config.data, stage_of(config.method))));
  return settings;
}

void set_value(Settings& settings, std::string_view key, std::string value) {
  for (auto& [name, old] : settings) {
    if (name == key) old = std::move(value);
  }
}

std::vector<ChangedSetting> changed_settings(const Settings& then, const Settings& now) {
  std::vector<ChangedSetting> changed;
  for (const auto& [key, value] : now) {
    const auto before = std::ranges::find(then, key, &std::pair<std::string, std::string>::first);
    if (before == then.end() || before->second == value) continue;
    changed.push_back({key, before->second, value, on_resume(key)});
  }
  return changed;
}

}  // namespace longspan
