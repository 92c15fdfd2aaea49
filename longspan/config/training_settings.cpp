#include "longspan/config/training_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <variant>

#include "longspan/config/choices.h"
#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/stages/stage.h"

namespace longspan {
namespace {

struct KeysOf {
  OnResume on_resume;
  std::vector<std::string_view> keys;
};

/// Each key of key_sections() once.
const std::vector<KeysOf>& table() {
  static const std::vector<KeysOf> all = {
      {OnResume::kRefused,
       {"stage", "finetuning_type", "seed", "disable_shuffling", "lora_rank", "lora_target"}},
      // Rows of data that come out otherwise are refused by their fingerprint, parameters by
      // theirs: a key that changes neither may change.
      {OnResume::kNamed,
       {"pure_bf16",
        "lora_alpha",
        "lora_dropout",
        "use_rslora",
        "freeze_trainable_layers",
        "freeze_trainable_modules",
        "freeze_extra_modules",
        "pref_beta",
        "pref_loss",
        "pref_ftx",
        "dpo_label_smoothing",
        "simpo_gamma",
        "kto_chosen_weight",
        "kto_rejected_weight",
        "value_head_dropout",
        "dataset",
        "eval_dataset",
        "template",
        "cutoff_len",
        "max_samples",
        "val_size",
        "mask_history",
        "train_on_prompt",
        "default_system",
        "enable_thinking",
        "on_bad_row",
        "packing",
        "neat_packing",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "learning_rate",
        "num_train_epochs",
        "max_steps",
        "lr_scheduler_type",
        "warmup_ratio",
        "warmup_steps",
        "max_grad_norm",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "optim",
        "moe_aux_loss_coef",
        "on_nonfinite",
        "bf16"}},
      {OnResume::kFree,
       {// Folders: what lies in them is compared.
        "model_name_or_path", "adapter_name_or_path", "ref_model", "ref_model_adapters",
        "dataset_dir",
        // Said in other words by another key, or by the positions of the model.
        "rope_scaling", "train_sampling_strategy", "data_seed", "use_cpu", "deepspeed",
        // How the same numbers are computed.
        "flash_attn", "device", "share_gpus", "full_determinism", "disable_gradient_checkpointing",
        "precompute_ref_log_probs", "pref_share_prompt", "preprocessing_num_workers", "zero_stage",
        "zero_shard_size", "offload_optimizer", "offload_params", "offload_activations",
        "offload_folder", "tiled_mlp", "nproc_per_node", "sequence_parallel_size",
        "sequence_parallel_mode", "sequence_parallel_ulysses_degree",
        "sequence_parallel_ring_degree", "sequence_parallel_window_size",
        "sequence_parallel_head_waves", "expert_parallel_size", "ddp_timeout",
        // What is told and kept of it.
        "do_train", "do_eval", "eval_strategy", "eval_steps", "per_device_eval_batch_size",
        "output_dir", "overwrite_output_dir", "fallback_output_dir", "report_to", "logging_dir",
        "run_name", "logging_strategy", "logging_steps", "logging_first_step", "disable_tqdm",
        "save_strategy", "save_steps", "save_total_limit", "save_only_model",
        "resume_from_checkpoint", "plot_loss", "export_dir", "export_size"}}};
  return all;
}

/// Does the key say anything to a run of this stage and kind?
bool applies(const Key& key, const Config& config) {
  const std::string_view name = key.name;
  if (name.starts_with("lora_") || name == "use_rslora") return trains_adapter(config);
  if (name.starts_with("freeze_")) {
    return finetuning_type_of(config) == FinetuningType::kFreeze;
  }
  return is_for_stage(name, stage_of(config));
}

std::string text_of(const std::string& value) { return value.empty() ? "not set" : value; }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(double value) { return fmt::format("{}", value); }
std::string text_of(int64_t value) { return fmt::format("{}", value); }
std::string text_of(int value) { return fmt::format("{}", value); }
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "not set";
}

}  // namespace

OnResume on_resume(std::string_view key) {
  for (const KeysOf& some : table()) {
    if (std::ranges::find(some.keys, key) != some.keys.end()) return some.on_resume;
  }
  throw std::logic_error(fmt::format("nobody says what {} is to a run that goes on", key));
}

Settings training_settings(const Config& config) {
  Settings settings;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (on_resume(key.name) == OnResume::kFree || !applies(key, config)) continue;
      settings.emplace_back(
          key.name, std::visit([&](auto member) { return text_of(config.*member); }, key.field));
    }
  }
  // What a key that is left out comes to.
  set_value(settings, "lora_alpha", text_of(config.lora_alpha.value_or(2 * config.lora_rank)));
  set_value(settings, "packing", text_of(packs(config)));
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
