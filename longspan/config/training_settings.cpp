#include "longspan/config/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <stdexcept>

#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
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

/// Keys of data sets that make no training row of a stream: it has no pictures, and a run that
/// stopped at a bad row goes on without it after the same rows.
constexpr std::array<std::string_view, 8> kBesideStream = {
    "eval_dataset",     "on_bad_row",       "image_max_pixels", "image_min_pixels",
    "video_max_pixels", "video_min_pixels", "video_fps",        "video_maxlen"};

/// Plans, data sets, models and checkpoints are compared by their contents. The run's devices are
/// compared when the ranks meet.
constexpr auto kOfOneProcess = std::to_array<std::string_view>(
    {// folders and files
     "model_name_or_path", "adapter_name_or_path", "ref_model", "ref_model_adapters", "dataset",
     "eval_dataset", "dataset_dir", "media_dir", "tokenized_path", "cache_dir", "output_dir",
     "fallback_output_dir", "logging_dir", "metrics_file", "export_dir", "offload_folder",
     "resume_from_checkpoint", "rollouts", "network_rates",
     // of this machine, and of the process that logs
     "device", "use_cpu", "flash_attn", "nproc_per_node", "preprocessing_num_workers",
     "disable_tqdm", "run_name", "project", "trackio_space_id", "swanlab_logdir", "rollout_url",
     "rollout_api_key_env", "rollout_update_command", "reward_command", "reward_url",
     "environment_command"});

bool makes_streamed_row(const Key& key) {
  return key.on_resume != OnResume::kFree &&
         std::ranges::find(kBesideStream, key.name) == kBesideStream.end();
}

Settings data_settings(const Config& config, const std::function<bool(const Key&)>& decides) {
  Settings settings = {{"stage", config.method.stage},
                       {"rows of LLaMA-Factory's v1", config.data.v1_rows ? "true" : "false"}};
  for (const Key& key : key_tables::data_keys().keys) {
    if (decides(key)) settings.emplace_back(key.name, value_of(key, config));
  }
  set_value(settings, "packing", fmt::format("{}", packs(config.data, stage_of(config.method))));
  return settings;
}

}  // namespace

OnResume on_resume(std::string_view key) {
  for (const KeySection& section : key_sections()) {
    const auto found = std::ranges::find(section.keys, key, &Key::name);
    if (found != section.keys.end()) return found->on_resume;
  }
  throw std::logic_error(fmt::format("key {} has no OnResume", key));
}

Settings all_settings(const Config& config) {
  Settings settings;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      std::string value = value_of(key, config);
      if (value.empty()) continue;
      const std::string_view name = key.name;  // commands and addresses may hold passwords
      if (name.ends_with("_command") || name.ends_with("_url")) value = "(given)";
      settings.emplace_back(name, std::move(value));
    }
  }
  return settings;
}

Settings settings_of_all_ranks(const Config& config) {
  Settings settings = all_settings(config);
  std::erase_if(settings, [](const auto& setting) {
    return std::ranges::find(kOfOneProcess, setting.first) != kOfOneProcess.end();
  });
  return settings;
}

std::vector<std::string_view> keys_of_one_process() {
  return {kOfOneProcess.begin(), kOfOneProcess.end()};
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

Settings row_settings(const Config& config) {
  Settings settings =
      data_settings(config, [](const Key& key) { return key.on_resume != OnResume::kFree; });
  settings.insert(settings.begin() + 2,  // the place decides the names of kept rows
                  {"rows of evaluation as questions",
                   config.method.generation.predict_with_generate ? "true" : "false"});
  return settings;
}

Settings stream_settings(const Config& config) { return data_settings(config, makes_streamed_row); }

bool makes_streamed_rows(std::string_view key) {
  const KeySection section = key_tables::data_keys();
  const auto found = std::ranges::find(section.keys, key, &Key::name);
  return found != section.keys.end() && makes_streamed_row(*found);
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
