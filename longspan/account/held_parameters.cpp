#include "longspan/account/held_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/choices.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Parameters in flat buffers, and shares of them, are padded to multiples of this many elements.
constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Bytes per element at use.
int64_t element_bytes_at_use(const AccountSettings& settings, const HeldParameter& parameter,
                             int num_ranks) {
  if (parameter.packed) return parameter.element_bytes;
  // The files of adapters have the masters' numbers.
  const bool used_alone =
      zero_stage_of(settings.memory) >= 1 && num_ranks > 1 && !trains_adapter(settings.method);
  const bool apart = is_gathered(settings.memory, parameter, num_ranks) ||
                     (parameter.trained && (settings.memory.offload_optimizer || used_alone));
  const bool cast = apart && is_copied_for_use(parameter.spec);
  return cast && computes_in_bf16(settings.model, settings.optimization) ? 2
                                                                         : parameter.element_bytes;
}

/// True for the head when a value head is trained. Weight decay must not move such a head either.
bool is_unused(const Stage& stage, const ParameterSpec& parameter) {
  return !stage.uses_lm_head && parameter.role == ParameterRole::kHead;
}

}  // namespace

std::set<std::string> trained_by_freeze(const MethodSettings& config, const ModelSpec& model) {
  const int64_t wanted = std::abs(config.freeze_trainable_layers), L = model.num_layers;
  if (wanted > L) {
    throw UserError(fmt::format("freeze_trainable_layers: {}, but the model has {}",
                                counted(wanted, "layer"), L));
  }
  const int64_t first = config.freeze_trainable_layers > 0 ? L - wanted : 0;
  const Stage& stage = stage_of(config);
  std::set<std::string> found;
  const std::vector<std::string> modules = split_names(config.freeze_trainable_modules),
                                 extra = split_names(config.freeze_extra_modules);
  const auto trains = [&](const ParameterSpec& parameter) {
    if (!parameter.layer) {
      for (const std::string& module : extra) {  // any substring of the name, as in LLaMA-Factory
        if (parameter.name.find(module) == std::string::npos) continue;
        if (is_unused(stage, parameter)) {
          throw UserError(fmt::format(
              "freeze_extra_modules: stage: {} does not use {}, and would not train it. Remove {}.",
              stage.name, parameter.name, module));
        }
        found.insert(module);
        return true;
      }
      return false;
    }
    bool named = false;
    for (const std::string& module : modules) {
      if (module != "all" && parameter.module != module) continue;
      found.insert(module);
      named = true;
    }
    return named && *parameter.layer >= first && *parameter.layer < first + wanted;
  };
  std::set<std::string> trained;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (trains(parameter)) trained.insert(parameter.name);
  }
  for (const std::vector<std::string>* list : {&modules, &extra}) {
    for (const std::string& module : *list) {
      if (found.contains(module)) continue;
      throw UserError(
          fmt::format("freeze_{}_modules: the model has no parameter with {} in its name {}",
                      list == &modules ? "trainable" : "extra", module,
                      list == &modules ? "in its layers (self_attn, mlp, input_layernorm, ...)"
                                       : "outside of its layers (embed_tokens, norm, lm_head)"));
    }
  }
  return trained;
}

std::set<ModelPart> unfrozen_parts(const MethodSettings& config, const ModelSpec& model) {
  if (!model.vision) return {ModelPart::kLanguage};
  std::set<ModelPart> parts;
  if (!config.freeze_language_model) parts.insert(ModelPart::kLanguage);
  if (!config.freeze_vision_tower) parts.insert(ModelPart::kTower);
  if (!config.freeze_multi_modal_projector) parts.insert(ModelPart::kProjector);
  return parts;
}

namespace {

/// Throws UserError for a module of which the stage uses no parameter.
void require_used(const LoraShape& shape, const Stage& stage, const ModelSpec& model) {
  for (const std::string& name : shape.whole_modules) {
    LoraShape one;
    one.whole_modules = {name};
    if (std::ranges::any_of(parameters_of(model), [&](const ParameterSpec& parameter) {
          return one.trains_whole(parameter) && !is_unused(stage, parameter);
        })) {
      continue;
    }
    throw UserError(fmt::format(
        "additional_target: stage: {} does not use {}, and would not train it. Remove it.",
        stage.name, name));
  }
}

/// Returns the short names of the modules with a row for each token, with commas between, as
/// LLaMA-Factory chooses additional_target.
std::string modules_of_vocabulary(const Stage& stage, const ModelSpec& model) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    const bool has_row_per_token =
        parameter.role == ParameterRole::kEmbedding || parameter.role == ParameterRole::kHead;
    if (!has_row_per_token || is_unused(stage, parameter)) continue;
    const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
    names.push_back(module.substr(module.rfind('.') + 1));
  }
  return fmt::format("{}", fmt::join(names, ","));
}

/// Returns which of the model's own parameters finetuning_type trains.
std::function<bool(const ParameterSpec&)> trained_by_type(const MethodSettings& config,
                                                          const ModelSpec& model) {
  switch (finetuning_type_of(config)) {
    case FinetuningType::kFull:
      return [](const ParameterSpec&) { return true; };
    case FinetuningType::kFreeze:
      return [unfrozen = trained_by_freeze(config, model)](const ParameterSpec& parameter) {
        return unfrozen.contains(parameter.name);
      };
    case FinetuningType::kLora:
      return [](const ParameterSpec&) { return false; };
  }
  throw std::logic_error("a finetuning_type that trains nobody knows what");
}

/// Returns the format in which the run holds a frozen parameter; nullopt: in its dtype.
std::optional<PackedFormat> packed_format_of(const AccountSettings& settings,
                                             const ParameterSpec& parameter) {
  if (settings.folder != nullptr) {
    if (!settings.folder->holds(parameter)) return std::nullopt;
    return settings.folder->format;
  }
  const ModelSettings& model = settings.model;
  if (!model.quantization_bit || !is_quantized_matrix(parameter)) return std::nullopt;
  if (model.quantization_bit == 8) return EightBits{};
  return FourBits{model.quantization_type == "fp4" ? FourBitValues::kFp4 : FourBitValues::kNf4,
                  model.double_quantization};
}

}  // namespace

std::vector<HeldParameter> held_parameters(const AccountSettings& settings, const ModelSpec& model,
                                           const LoraShape& lora) {
  const bool has_adapter = trains_adapter(settings.method);
  const int64_t own_bytes =
      settings.model.pure_bf16 || (settings.optimization.bf16 && has_adapter) ? 2 : 4;
  const int64_t added_bytes = settings.model.pure_bf16 ? 2 : 4;
  const Stage& stage = stage_of(settings.method);
  const auto is_trained = trained_by_type(settings.method, model);
  const std::set<ModelPart> unfrozen = unfrozen_parts(settings.method, model);
  std::vector<HeldParameter> held;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (is_buffer(parameter.role)) {
      held.push_back({parameter, 4, false});
      continue;
    }
    const bool whole = has_adapter && lora.trains_whole(parameter);
    const bool trained = (whole || is_trained(parameter)) && !is_unused(stage, parameter) &&
                         unfrozen.contains(parameter.part);
    held.push_back({parameter, whole ? added_bytes : own_bytes, trained});
    if (!trained) held.back().packed = packed_format_of(settings, parameter);
  }
  if (has_adapter) {
    for (const ParameterSpec& matrix : lora_parameters_of(model, lora)) {
      held.push_back({matrix, added_bytes, true});
    }
  }
  if (stage.has_value_head) {
    for (const ParameterSpec& parameter : value_head_parameters(model.hidden_size)) {
      held.push_back({parameter, added_bytes, true});
    }
  }
  return held;
}

LoraShape lora_shape_of(const MethodSettings& config, const ModelSpec& model) {
  LoraShape shape;
  shape.r = config.lora_rank;
  shape.alpha = static_cast<double>(config.lora_alpha.value_or(2 * config.lora_rank));
  shape.dropout = config.lora_dropout;
  shape.rank_stabilized = config.use_rslora;
  shape.decomposed = config.use_dora;
  shape.parts = unfrozen_parts(config, model);
  shape.modules = lora_modules_from(config.lora_target, model, shape.parts);
  shape.whole_modules = whole_modules_from(config.additional_target, model);
  if (config.resize_vocab && shape.whole_modules.empty()) {
    shape.whole_modules = whole_modules_from(modules_of_vocabulary(stage_of(config), model), model);
  }
  require_used(shape, stage_of(config), model);
  return shape;
}

LoraShape as_trained(LoraShape adapter, const MethodSettings& config) {
  if (config.lora_dropout > 0) adapter.dropout = config.lora_dropout;
  return adapter;
}

std::vector<HeldParameter> planned_parameters(const AccountSettings& settings,
                                              const ModelSpec& model) {
  return held_parameters(
      settings, model,
      trains_adapter(settings.method) ? lora_shape_of(settings.method, model) : LoraShape{});
}

std::vector<HeldParameter> reference_parameters(const AccountSettings& settings,
                                                const ModelSpec& model) {
  const bool lora = trains_adapter(settings.method);
  if (settings.preferences.ref_model.empty() && lora) return {};
  const bool all_bf16 = settings.model.pure_bf16 || (settings.optimization.bf16 && lora);
  std::vector<HeldParameter> held;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    const bool small =
        !is_buffer(parameter.role) &&
        (all_bf16 || (settings.optimization.bf16 && parameter.use == ParameterUse::kCast));
    held.push_back({parameter, small ? 2 : 4, false});
  }
  return held;
}

std::vector<HeldParameter> parameters_here(std::vector<HeldParameter> all,
                                           int expert_parallel_size) {
  std::erase_if(all, [&](const HeldParameter& parameter) {
    const std::optional<ExpertNumber>& expert = parameter.spec.expert;
    return expert && place_of(*expert, expert_parallel_size) != 0;
  });
  return all;
}

int ranks_of(const HeldParameter& parameter, int num_ranks, int expert_parallel_size) {
  if (!parameter.spec.expert || expert_parallel_size == 1) return num_ranks;
  return expert_shard_size(num_ranks, expert_parallel_size);
}

bool is_gathered(const MemorySettings& config, const HeldParameter& parameter, int num_ranks) {
  return divides_values(config) && (num_ranks > 1 || config.offload_params) &&
         parameter.spec.unit != kAlwaysThere;
}

std::vector<HeldParameter> used_parameters(const AccountSettings& settings,
                                           std::vector<HeldParameter> held, int num_ranks,
                                           int expert_parallel_size) {
  for (HeldParameter& parameter : held) {
    parameter.element_bytes = element_bytes_at_use(
        settings, parameter, ranks_of(parameter, num_ranks, expert_parallel_size));
  }
  return held;
}

HeldBytes sharded_bytes(const AccountSettings& settings, const std::vector<HeldParameter>& held,
                        int num_ranks, int expert_parallel_size, bool cuda) {
  // Parameters of a flat buffer have the same unit and dtype, are all trained or none, and are
  // sharded over the same number of ranks.
  using Key = std::tuple<int, bool, int64_t, int64_t, bool, int, bool>;
  std::map<Key, int64_t> numbers;
  std::map<int, int64_t> packed;  // bytes of each unit
  HeldBytes bytes;
  for (const HeldParameter& parameter : held) {
    const int ranks = ranks_of(parameter, num_ranks, expert_parallel_size);
    const bool gathered = is_gathered(settings.memory, parameter, ranks);
    if (gathered && parameter.packed) {
      packed[parameter.spec.unit] += parameter.num_bytes();
      continue;
    }
    if (!parameter.trained && !gathered) {
      bytes.device += parameter.num_bytes();
      continue;
    }
    numbers[{parameter.spec.unit, parameter.trained, parameter.element_bytes,
             element_bytes_at_use(settings, parameter, ranks), gathered, ranks,
             expert_parallel_size > 1 && parameter.spec.expert}] +=
        round_up(parameter.spec.num_elements(), kAlignment);
  }
  for (const auto& [unit, size] : packed) {
    bytes.device += round_up((size + num_ranks - 1) / num_ranks, kAlignment);
  }
  for (const auto& [key, size] : numbers) {
    const auto& [unit, trained, master_bytes, whole_bytes, gathered, ranks, of_experts] = key;
    const int64_t share = round_up((size + ranks - 1) / ranks, kAlignment);
    const bool host_values = gathered && settings.memory.offload_params;
    const bool masters_on_host = host_values || (trained && settings.memory.offload_optimizer);
    const bool masters_are_whole = !gathered && !masters_on_host && master_bytes == whole_bytes;
    if (!gathered) bytes.device += ranks * share * whole_bytes;
    if (!masters_are_whole && !masters_on_host) bytes.device += share * master_bytes;
    if (gathered && masters_on_host && !host_values) bytes.device += share * whole_bytes;
    if (masters_on_host) bytes.host += share * master_bytes;
    if (cuda && host_values && master_bytes != whole_bytes) bytes.host += share * whole_bytes;
  }
  return bytes;
}

int64_t bytes_in_buckets(const std::vector<HeldParameter>& parameters) {
  int64_t bytes = 0;
  for (const HeldParameter& parameter : parameters) {
    if (parameter.trained && parameter.num_bytes() < kBucketBytes) bytes += parameter.num_bytes();
  }
  return bytes;
}

int64_t num_parameters_without_embeddings(const std::vector<HeldParameter>& parameters,
                                          const ModelSpec& spec) {
  int64_t total = -idle_parameters_of(spec);
  for (const HeldParameter& parameter : parameters) {
    const ParameterRole role = parameter.spec.role;
    if (role != ParameterRole::kEmbedding && !is_buffer(role)) {
      total += parameter.spec.num_elements();
    }
  }
  return total;
}

}  // namespace longspan
