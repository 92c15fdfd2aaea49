#include "longspan/config/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "longspan/base/names.h"
#include "longspan/config/check_dealing.h"
#include "longspan/config/check_groups.h"
#include "longspan/config/check_quantization.h"
#include "longspan/config/check_streaming.h"
#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/config/unused_keys.h"
#include "longspan/input/numbers.h"
#include "longspan/registers/rollout_server.h"
#include "longspan/registers/schedule.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"

namespace longspan {

namespace {

using Demand = std::function<void(bool holds, std::string_view problem)>;

/// Whether the key has its default value. For an optional boolean, also where it is false.
bool asks_for_nothing(const Key& key, const Config& config) {
  const Config defaults;
  return std::visit(
      [&](const auto& member) {
        if constexpr (std::is_same_v<decltype(member), const FieldOf<std::optional<bool>>&>) {
          return !member.in(config).value_or(false);
        } else {
          return member.in(config) == member.in(defaults);
        }
      },
      key.field);
}

/// Refuses keys of other finetuning types.
void check_method(const Config& config, const Demand& demand) {
  const FinetuningType own = finetuning_type_of(config.method);
  for (const FinetuningType type : kFinetuningTypes) {
    if (type == own) continue;
    std::vector<std::string_view> names;
    bool asks = false;
    for (const KeySection& section : key_sections()) {
      for (const Key& key : section.keys) {
        if (key.finetuning_type != type) continue;
        names.push_back(key.name);
        asks = asks || !asks_for_nothing(key, config);
      }
    }
    demand(!asks, fmt::format("{} are for finetuning_type: {}; remove them, or set it",
                              enumerated(names), name_of(type)));
  }
  demand(own == FinetuningType::kLora || config.model.adapter_name_or_path.empty(),
         "adapter_name_or_path is for finetuning_type: lora; `longspan export` merges an adapter "
         "into its model");
  check_pissa(config, demand);
  check_adapter(config, demand);
  demand(config.method.lora_dropout < 1, "lora_dropout: 1 drops everything; give less");
  demand(std::abs(config.method.freeze_trainable_layers / 2) < kMostIndexed / 2,
         "freeze_trainable_layers: no model has so many layers");
  demand(config.method.freeze_trainable_layers != 0,
         "freeze_trainable_layers: 0 trains nothing; give a number of layers, negative for the "
         "first ones");
}

/// Refuses keys that only other stages use, and checks what the stage itself requires.
void check_stage(const Config& config, std::vector<std::string>& problems) {
  const Stage& stage = stage_of(config.method);
  std::vector<const StageKeys*> refused;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      if (is_for_stage(key.name, stage) || asks_for_nothing(key, config)) continue;
      const StageKeys* group = group_of_key(key.name);
      if (std::ranges::find(refused, group) == refused.end()) refused.push_back(group);
    }
  }
  for (const StageKeys* group : refused) problems.push_back(refusal_of(*group));
  std::ranges::move(stage.problems(config.preferences, config.method),
                    std::back_inserter(problems));
}

void check_preferences(const PreferenceSettings& config, const Demand& demand) {
  demand(config.ref_model_adapters.empty() || !config.ref_model.empty(),
         "ref_model_adapters wants ref_model, the model that they belong to");
  demand(config.value_head_dropout < 1, "value_head_dropout: 1 drops everything; give less");
}

void check_pictures(const Config& config, const Demand& demand) {
  demand(config.data.image_min_pixels <= config.data.image_max_pixels,
         "image_min_pixels is above image_max_pixels; lower it");
  demand(config.data.video_min_pixels <= config.data.video_max_pixels,
         "video_min_pixels is above video_max_pixels; lower it");
  const MethodSettings& method = config.method;
  demand(!method.freeze_language_model || !method.freeze_vision_tower ||
             !method.freeze_multi_modal_projector,
         "freeze_language_model, freeze_vision_tower and freeze_multi_modal_projector are all "
         "true, so that nothing is trained; set one to false");
}

void check_sharding(const MemorySettings& config, const Demand& demand) {
  const int64_t stage = config.zero_stage.value_or(0);
  demand(!config.zero_shard_size || stage > 0,
         "zero_shard_size is the number of processes that share a copy of the states; it wants "
         "zero_stage: 1, 2 or 3");
  demand(!config.offload_params || stage == 3,
         "offload_params gathers parameters for each use, as zero_stage: 3 does; set zero_stage: 3"
         " (one process is enough)");
}

void check_experts(const Config& config, const Demand& demand) {
  demand(config.parallel.expert_parallel_size == 1 || !config.memory.tiled_mlp,
         "tiled_mlp and expert_parallel_size are both given: processes that share out experts "
         "exchange all tokens of a row at once; remove one of them");
}

void check_mixing(const DataSettings& config, const Demand& demand) {
  demand(config.interleave_probs.empty() || config.mix_strategy != "concat",
         "interleave_probs is for data sets that are interleaved, and mix_strategy is concat; set "
         "mix_strategy: interleave_under, interleave_over or interleave_once");
}

void check_packing(const DataSettings& config, const Demand& demand) {
  demand(!config.neat_packing || config.packing.value_or(true),
         "neat_packing: true packs, packing: false does not; keep one");
}

void check_activations(const Config& config, const Demand& demand) {
  const OffloadedTo offloaded_to = activations_offloaded_to(config.memory);
  const bool offloads = offloaded_to != OffloadedTo::kNowhere;
  demand(!offloads || !config.model.disable_gradient_checkpointing,
         "offload_activations moves the tensors that gradient checkpointing saves, and "
         "disable_gradient_checkpointing: true turns gradient checkpointing off; remove one of "
         "them");
  const bool keeps = config.memory.kept_mlp_layers.value_or(0) != 0;
  demand(!keeps || !config.model.disable_gradient_checkpointing,
         "kept_mlp_layers is for gradient checkpointing, and disable_gradient_checkpointing: true "
         "turns gradient checkpointing off; remove one of them");
  demand(!keeps || !config.memory.tiled_mlp,
         "kept_mlp_layers keeps gate and up of MLPs, and tiled_mlp computes them again, tile by "
         "tile; remove one of them");
  demand(config.memory.offload_folder == Config().memory.offload_folder ||
             offloaded_to == OffloadedTo::kDisk,
         "offload_folder is for offload_activations: disk; remove it, or set that");
  demand(offloaded_to != OffloadedTo::kDisk || !config.memory.offload_folder.empty(),
         "offload_folder is empty: give a folder on a disk with room for the activations");
}

/// Refuses keys about the rows of a data set that is not there.
void check_rows_of_caller(const Config& config, const Demand& demand) {
  if (!config.data.dataset.empty()) return;
  demand(config.data.val_size == 0,
         "val_size splits rows off dataset, and dataset is missing; give eval_dataset");
  demand(!config.preferences.precompute_ref_log_probs,
         "precompute_ref_log_probs computes a table for the rows of dataset, and dataset is "
         "missing; remove the key");
}

/// Keys of a server of rollouts.
void check_rollout_server(const Config& config, const Demand& demand) {
  const PolicySettings& policy = config.preferences.policy;
  const ServerKind& kind = server_kind_named(policy.rollout_server);
  demand(!policy.rollout_url.empty(), "rollout_url is missing: give the server's http://HOST:PORT");
  const std::string& variable = policy.rollout_api_key_env;
  demand(
      std::ranges::all_of(variable,
                          [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }),
      "rollout_api_key_env has a character that the name of an environment variable cannot have; "
      "give the name of a variable, not the API key itself");
  const bool corrects = stage_of(config.method).rollouts == RolloutUse::kRewards &&
                        policy.importance_sampling_correction != "none";
  demand(!kind.logprobs.empty() || !corrects,
         fmt::format("importance_sampling_correction: rollout_server: {} does not give the "
                     "log-probability of each token; set importance_sampling_correction: none",
                     kind.name));
  demand(policy.rollout_update.has_value(),
         fmt::format("rollout_update is missing: say how the server gets new weights: {}",
                     fmt::join(kUpdateWayNames, ", ")));
  if (!policy.rollout_update) return;
  const UpdateWay way = update_way_named(*policy.rollout_update);
  const auto offered = [&](std::string_view ServerKind::* path) {
    std::vector<std::string_view> names;
    for (const ServerKind& one : kServerKinds) {
      if (!(one.*path).empty()) names.push_back(one.name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
  };
  demand(way != UpdateWay::kDisk || !kind.load_model.empty(),
         fmt::format("rollout_update: disk is for a server that can load weights from a folder "
                     "({}); choose another rollout_update",
                     offered(&ServerKind::load_model)));
  demand(way != UpdateWay::kLora || !kind.load_adapter.empty(),
         fmt::format("rollout_update: lora is for a server that can load adapters ({}); choose "
                     "another rollout_update",
                     offered(&ServerKind::load_adapter)));
  demand(way != UpdateWay::kDisk || !trains_adapter(config.method),
         "rollout_update: disk loads a whole model, and finetuning_type: lora saves an adapter; "
         "choose another rollout_update");
  demand(way != UpdateWay::kLora || trains_adapter(config.method),
         "rollout_update: lora is for finetuning_type: lora; choose another rollout_update");
  demand(way != UpdateWay::kCommand || !policy.rollout_update_command.empty(),
         "rollout_update: command wants rollout_update_command; give it");
  if (!policy.max_staleness) return;
  demand(way != UpdateWay::kNone,
         "max_staleness: with rollout_update: none, rollouts become older with each update; remove "
         "the key");
  const int64_t oldest =
      (policy.async_steps + policy.rollout_update_steps - 1) * policy.num_iterations;
  demand(way == UpdateWay::kNone || *policy.max_staleness >= oldest,
         fmt::format("max_staleness: rollouts can be {} updates old, because of async_steps, "
                     "rollout_update_steps and num_iterations; give at least {}",
                     oldest, oldest));
}

/// The source of rollouts is a file, or answers to the questions of a data set.
void check_rollouts(const Config& config, const Demand& demand) {
  const PolicySettings& policy = config.preferences.policy;
  const Stage& stage = stage_of(config.method);
  if (policy.rollout == "file") {
    demand(!policy.rollouts.empty(), "rollouts is missing: give a file of rollouts (JSON lines)");
    demand(config.data.dataset.empty(),
           "dataset: rollout: file trains on the file in rollouts; remove dataset");
  } else {
    demand(!config.data.dataset.empty(),
           "dataset is missing: give the questions to answer, by names from dataset_info.json");
    demand(!policy.rewards.empty() || stage.rollouts != RolloutUse::kRewards,
           "rewards is missing: give the names of reward functions");
  }
  if (policy.rollout == "server") check_rollout_server(config, demand);
  demand(config.optimization.max_steps > 0,
         "max_steps is missing: the number of rollouts is not known in advance; give max_steps");
  demand(config.data.val_size == 0,
         fmt::format("val_size: stage {} has no evaluation; remove the key", stage.name));
}

void check_required(const Config& config, TrainingRows rows, const Demand& demand) {
  if (rows == TrainingRows::kOfCaller) {
    check_rows_of_caller(config, demand);
  } else if (stage_of(config.method).rollouts != RolloutUse::kNone) {
    check_rollouts(config, demand);
  } else {
    demand(!config.data.dataset.empty() || !config.method.do_train,
           "dataset is missing: give names from dataset_info.json");
  }
  demand(config.data.tokenized_path.empty() || !config.data.dataset.empty(),
         "tokenized_path is for the rows of dataset, which is missing; remove tokenized_path");
  demand(!config.output.output_dir.empty(), "output_dir is missing: give a folder for the results");
  demand(config.exporting.export_dir.empty() &&
             config.exporting.export_size == Config().exporting.export_size,
         "export_dir and export_size are for `longspan export`; remove them");
}

void check_steps(const OptimizationSettings& config, int64_t cutoff_len, const Demand& demand) {
  demand(config.warmup_ratio == 0 || config.warmup_steps == 0,
         "warmup_ratio and warmup_steps are both given: keep one");
  demand(
      warms_up(config.lr_scheduler_type) || (config.warmup_ratio == 0 && config.warmup_steps == 0),
      fmt::format("lr_scheduler_type: {} has no warmup_steps and no warmup_ratio; take "
                  "constant_with_warmup",
                  config.lr_scheduler_type));
  constexpr int64_t kMostTokens = int64_t{1} << 40;  // per row, so that its work can be counted
  for (const int64_t rows :
       {config.per_device_train_batch_size, config.per_device_eval_batch_size}) {
    if (rows <= kMostTokens / cutoff_len) continue;
    demand(false,
           fmt::format("{}: {} rows of up to {} tokens (cutoff_len) are more than the {} that a "
                       "micro-batch may have; lower one of them",
                       rows == config.per_device_train_batch_size ? "per_device_train_batch_size"
                                                                  : "per_device_eval_batch_size",
                       rows, cutoff_len, kMostTokens));
    break;
  }
  demand(config.max_steps == -1 || config.max_steps > 0,
         "max_steps: 0 trains nothing; give a positive number, or -1 to go by num_train_epochs");
  demand(config.adam_beta1 < 1 && config.adam_beta2 < 1,
         "adam_beta1 and adam_beta2 must be below 1");
}

/// Refuses pairs of keys that contradict each other.
void check_contradictions(const Config& config, const Demand& demand) {
  demand(
      !config.optimization.data_seed || *config.optimization.data_seed == config.optimization.seed,
      "data_seed and seed differ: seed orders the rows; remove data_seed, or give both the same "
      "number");
  demand(!config.model.use_cpu || wanted_device_of(config.model) == WantedDevice::kCpu,
         "use_cpu: true (no_cuda) and device: cuda are both given: keep one");

  const std::string& optim = config.optimization.optim;
  demand(!config.optimization.use_muon || optim == "muon_match_rms_adamw",
         "use_muon: true and optim are both given: keep one");
  demand(!config.optimization.global_batch_size ||
             config.optimization.gradient_accumulation_steps == 1,
         "global_batch_size and gradient_accumulation_steps are both given: keep one");
  demand(!config.data.mask_history || !config.data.train_on_prompt,
         "mask_history and train_on_prompt are both true: the first trains the last answer only, "
         "the second trains everything; keep one");

  const std::vector<ReportTo> reports = reports_of(config.output);
  demand(reports.size() < 2 || std::ranges::find(reports, ReportTo::kNothing) == reports.end(),
         "report_to: none and something else are both given; keep one");
  check_services(config.output, demand);
}

/// `of_run`: the rows of a run, for the keys that only a run needs; nullopt: for a session.
std::vector<std::string> problems_of(const Config& config, std::optional<TrainingRows> of_run) {
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };
  check_method(config, demand);
  check_stage(config, problems);
  std::ranges::move(problems_of_unused_keys(config, of_run == TrainingRows::kOfDataSet),
                    std::back_inserter(problems));
  check_quantization(config, demand);
  check_preferences(config.preferences, demand);
  check_mixing(config.data, demand);
  check_packing(config.data, demand);
  check_pictures(config, demand);
  check_sharding(config.memory, demand);
  check_dealing(config, demand);
  check_streaming(config, of_run.has_value(), demand);
  check_experts(config, demand);
  check_activations(config, demand);
  demand(!config.model.model_name_or_path.empty(),
         "model_name_or_path is missing: give a Hugging Face model folder");
  if (of_run) check_required(config, *of_run, demand);
  check_steps(config.optimization, config.data.cutoff_len, demand);
  check_contradictions(config, demand);
  if (of_run) check_evaluation(config, demand);
  if (of_run) check_answers(config, demand);
  demand(of_run || !config.optimization.global_batch_size,
         "global_batch_size is for `longspan train`, because the loop of a session decides the "
         "rows of a step; remove it");
  return problems;
}

}  // namespace

std::vector<std::string> check_config(const Config& config, TrainingRows rows) {
  return problems_of(config, rows);
}

std::vector<std::string> check_session_config(const Config& config) {
  return problems_of(config, std::nullopt);
}

std::vector<std::string> check_export_config(const Config& config) {
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };
  demand(!config.model.model_name_or_path.empty(),
         "model_name_or_path is missing: give a Hugging Face model folder");
  demand(!config.exporting.export_dir.empty(),
         "export_dir is missing: give a folder for the merged model");
  demand(!config.method.do_train, "do_train is for `longspan train`; remove it");
  demand(!config.model.quantization_bit,
         "quantization_bit is for training: adapters are merged into the weights of "
         "model_name_or_path as they are; remove the key");
  return problems;
}

}  // namespace longspan
