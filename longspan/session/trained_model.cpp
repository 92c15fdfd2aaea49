#include "longspan/session/trained_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <variant>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/grown_vocabulary.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/input/numbers.h"
#include "longspan/kernels/dropout.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/plan/plan_checks.h"
#include "longspan/registers/stage.h"
#include "longspan/session/attended_model.h"
#include "longspan/session/expert_balance.h"
#include "longspan/session/four_bit_checks.h"
#include "longspan/session/parameter_sources.h"
#include "longspan/session/shared_tower.h"
#include "longspan/session/trained_adapter.h"
#include "longspan/settings/choices.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

uint64_t seed_of(const Config& config) { return static_cast<uint64_t>(config.optimization.seed); }

std::vector<ParameterSource> sources_in(const std::string& folder, const Config& config,
                                        const ModelConfig& model, at::ScalarType dtype) {
  return config.method.resize_vocab ? grown_sources(folder, model, dtype, seed_of(config))
                                    : parameter_sources(folder, model, dtype);
}

std::vector<NamedTensor> new_value_head(const ModelConfig& model, uint64_t seed) {
  std::vector<NamedTensor> head;
  uint64_t number = 0;
  for (const ParameterSpec& parameter : value_head_parameters(model.spec.hidden_size)) {
    const at::Tensor tensor = at::empty(parameter.shape, at::kFloat);
    const double bound = parameter.init.scale;
    float* data = tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const double u =
          static_cast<double>(mix_seed(mix_seed(seed, 0x7a1e), number++) >> 11) * 0x1p-53;
      data[i] = static_cast<float>((2 * u - 1) * bound);
    }
    head.push_back({parameter.name, tensor});
  }
  return head;
}

/// `in_memory`: the model comes from no folder.
std::vector<NamedTensor> value_head_of(const Config& config, const ModelConfig& model,
                                       bool in_memory) {
  std::vector<NamedTensor> head;
  const std::vector<std::string> adapters = split_names(config.model.adapter_name_or_path);
  if (!adapters.empty()) head = load_value_head(adapters.back(), model);
  if (head.empty() && !in_memory) head = load_value_head(config.model.model_name_or_path, model);
  if (head.empty()) head = new_value_head(model, seed_of(config));
  return head;
}

/// Throws UserError where keys select parts of a model that the run does not have.
void require_parts(const MethodSettings& config, const ModelSpec& model) {
  const MethodSettings defaults;
  const auto require = [&](const char* key, bool value, bool by_default) {
    if (model.vision || value == by_default) return;
    throw UserError(fmt::format(
        "{}: {}, but the run trains no vision tower: its model takes no pictures, or no data set "
        "has a column of them. Remove the key.",
        key, value));
  };
  require("freeze_vision_tower", config.freeze_vision_tower, defaults.freeze_vision_tower);
  require("freeze_multi_modal_projector", config.freeze_multi_modal_projector,
          defaults.freeze_multi_modal_projector);
  require("freeze_language_model", config.freeze_language_model, defaults.freeze_language_model);
}

/// Both models score the same tokens.
void require_same_vocabulary(const Config& config, const ModelSpec& model,
                             const ModelSpec& reference) {
  if (reference.vocab_size == model.vocab_size) return;
  throw UserError(fmt::format(
      "ref_model {} has a vocabulary of {}; the trained model has {}. Choose a model with the same "
      "vocabulary.",
      config.preferences.ref_model, counted(reference.vocab_size, "token"),
      counted(model.vocab_size, "token")));
}

/// Makes the parameters, and their owners if they are sharded, offloaded or packed.
void make_parameters(TrainedModel& trained, const std::vector<ParameterSource>& sources,
                     const ParameterPlace& place) {
  std::vector<PackedSource> packed;
  std::vector<ParameterSource> others;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (const std::optional<PackedFormat>& format = trained.all.at(i).packed) {
      packed.push_back({sources[i], *format});
    } else {
      others.push_back(sources[i]);
    }
  }
  if (place.sharding) {
    trained.sharded = std::make_unique<ShardedParameters>(others, *place.sharding);
    trained.parameters = trained.sharded->parameters();
  } else {
    trained.parameters = make_all(others, place.device);
  }
  if (packed.empty()) return;
  const bool divides = place.sharding && place.sharding->stage >= 3;
  trained.packed = std::make_unique<PackedParameters>(
      packed,
      PackingOptions{.device = place.device, .shard = divides ? place.sharding->shard : Group()},
      trained.sharded.get());
  std::map<std::string, NamedTensor> by_name;
  for (const NamedTensor& parameter : trained.parameters) by_name[parameter.name] = parameter;
  for (const NamedTensor& parameter : trained.packed->parameters()) {
    by_name[parameter.name] = parameter;
  }
  trained.parameters.clear();  // in the order of the sources
  for (const ParameterSource& source : sources) {
    trained.parameters.push_back(by_name.at(source.spec.name));
  }
}

/// Returns the format of the matrices that this run packs itself; nullopt: there are none. Matrices
/// that the folder holds in 4 bits are made as they are unpacked.
std::optional<FourBits> four_bits_among(const std::vector<HeldParameter>& held) {
  for (const HeldParameter& parameter : held) {
    if (!parameter.packed) continue;
    if (const auto* format = std::get_if<FourBits>(&*parameter.packed)) return *format;
  }
  return std::nullopt;
}

}  // namespace

std::vector<HeldParameter> TrainedModel::held() const {
  std::map<std::string, std::optional<PackedFormat>> formats;
  for (const HeldParameter& parameter : all) formats[parameter.spec.name] = parameter.packed;
  std::vector<HeldParameter> held;
  for (const auto& [name, tensor] : parameters) {
    held.push_back({specs.of(name), static_cast<int64_t>(tensor.element_size()),
                    tensor.requires_grad(), formats.at(name)});
  }
  return held;
}

std::vector<NamedTensor> TrainedModel::in_use() const {
  std::vector<NamedTensor> tensors = parameters;
  if (packed) tensors.insert(tensors.end(), packed->codes().begin(), packed->codes().end());
  return tensors;
}

ParameterHooks* TrainedModel::hooks() const {
  return packed != nullptr ? static_cast<ParameterHooks*>(packed.get()) : sharded.get();
}

void TrainedModel::sum_over(const Group& world) {
  if (sharded || world.size() == 1) return;
  sums = std::make_unique<WholeGradientSums>(parameters, specs, world, hooks());
  options.parameter_hooks = sums.get();
}

int64_t TrainedModel::num_parameters() const {
  int64_t total = 0;
  for (const HeldParameter& parameter : all) {
    if (!is_buffer(parameter.spec.role)) total += parameter.spec.num_elements();
  }
  return total;
}

int64_t TrainedModel::num_trained() const {
  int64_t total = 0;
  for (const HeldParameter& parameter : all) {
    if (parameter.trained) total += parameter.spec.num_elements();
  }
  return total;
}

void check_trained_model(const Config& config, const ModelConfig& model) {
  const ModelSpec& spec = model.spec;
  require_parts(config.method, spec);
  require_four_bits(config, model);
  auxiliary_loss_coefficient(config.optimization, model);
  const std::vector<std::string> adapters = split_names(config.model.adapter_name_or_path);
  for (const std::string& folder : adapters) {
    const Adapter adapter = load_adapter(folder, model);
    if (folder == adapters.back()) require_adapter(config, model, adapter.shape);
  }
  if (trains_adapter(config.method) && adapters.empty()) require_new_adapter(config, model);
  if (finetuning_type_of(config.method) == FinetuningType::kFreeze)
    trained_by_freeze(config.method, spec);
  if (config.preferences.ref_model.empty()) return;
  const ModelConfig reference = model_config_for(config, config.preferences.ref_model);
  require_same_vocabulary(config, model.spec, reference.spec);
  if (const MixtureOfExpertsSpec* experts = experts_of(reference.spec)) {
    check_experts_divide(config.parallel.expert_parallel_size, experts->num_experts, "ref_model");
  }
  for (const std::string& folder : split_names(config.preferences.ref_model_adapters)) {
    load_adapter(folder, reference);
  }
}

std::optional<ShardingOptions> sharding_of(const Config& config, const Mesh& mesh,
                                           at::Device device) {
  const int stage = zero_stage_of(config.memory);
  if (stage == 0 && !config.memory.offload_optimizer && mesh.experts.size() == 1)
    return std::nullopt;
  return ShardingOptions{.stage = stage,
                         .shard = mesh.shard,
                         .replicas = mesh.replicas,
                         .experts = mesh.experts,
                         .expert_shard = mesh.expert_shard,
                         .expert_replicas = mesh.expert_replicas,
                         .offload_optimizer = config.memory.offload_optimizer,
                         .offload_params = config.memory.offload_params,
                         .device = device,
                         .compute_dtype = computes_in_bf16(config.model, config.optimization)
                                              ? at::kBFloat16
                                              : at::kFloat,
                         .saves_masters = trains_adapter(config.method)};
}

TrainedModel load_trained_model(const Config& config, const ParameterPlace& place) {
  const auto& [model, sharding, device, given, patches, kernel] = place;
  const bool bf16 = computes_in_bf16(config.model, config.optimization),
             lora = trains_adapter(config.method);
  const Stage& stage = stage_of(config.method);
  TrainedModel trained;
  trained.options.gradient_checkpointing = !config.model.disable_gradient_checkpointing;
  trained.options.compute_dtype = bf16 ? at::kBFloat16 : at::kFloat;
  trained.options.neftune_alpha = config.optimization.neftune_noise_alpha;
  trained.options.mlp_tiles = config.memory.tiled_mlp.value_or(0);
  std::vector<std::string> merged = split_names(config.model.adapter_name_or_path), kept;
  if (!merged.empty()) {
    kept.push_back(merged.back());
    merged.pop_back();
  }
  const ModelSpec& spec = model.spec;
  trained.specs = ParameterTable(parameters_of(spec));
  std::optional<Adapter> adapter;
  if (lora && !kept.empty()) {
    adapter = load_adapter(kept[0], model);
    require_same_shape(config, spec, adapter->shape);
    trained.lora = as_trained(adapter->shape, config.method);
  } else if (lora) {
    trained.lora = lora_shape_of(config.method, spec);
  }
  const std::vector<HeldParameter> own =
      held_parameters({config.model, config.method, config.preferences, config.optimization,
                       config.memory, model.stored.four_bits()},
                      spec, trained.lora.value_or(LoraShape{}));
  const bool small = std::ranges::all_of(own, [](const HeldParameter& parameter) {
    const ParameterRole role = parameter.spec.role;
    return is_buffer(role) || is_lora(role) || is_value_head(role) || parameter.element_bytes == 2;
  });
  const at::ScalarType dtype = small && merged.empty() ? at::kBFloat16 : at::kFloat;
  std::vector<ParameterSource> sources =
      given != nullptr ? sources_of(*given, model, dtype)
                       : sources_in(config.model.model_name_or_path, config, model, dtype);
  merge_adapters(merged, model, sources);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (own[i].element_bytes == 2) convert(sources[i], at::kBFloat16);
    sources[i].trained = own[i].trained;
  }

  std::vector<NamedTensor> added;
  if (lora) {
    if (!adapter) {
      const uint64_t seed = seed_of(config);
      if (config.method.pissa_init) {
        added = take_principal_parts(*trained.lora, config.method.pissa_iter, seed, sources);
        trained.first_adapter = added;
      } else {
        added = new_lora_parameters(spec, *trained.lora, seed);
        trained.first_adapter = set_magnitudes(*trained.lora, sources, four_bits_among(own), added);
      }
    } else {
      added = take_whole(*adapter, sources);
    }
    require_in_peft(spec, *trained.lora);
    trained.options.lora_scale = trained.lora->scale();
    trained.options.lora_dropout = trained.lora->dropout;
    for (const ParameterSpec& matrix : lora_parameters_of(spec, *trained.lora)) {
      trained.specs.add(matrix);
    }
  }
  if (stage.has_value_head) {
    for (NamedTensor& parameter : value_head_of(config, model, given != nullptr))
      added.push_back(parameter);
    for (const ParameterSpec& parameter : value_head_parameters(model.spec.hidden_size)) {
      trained.specs.add(parameter);
    }
  }
  for (ParameterSource& source : sources_from(added, trained.specs)) {
    source.trained = true;
    if (config.model.pure_bf16) convert(source, at::kBFloat16);
    sources.push_back(std::move(source));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    trained.all.push_back({sources[i].spec,
                           static_cast<int64_t>(c10::elementSize(sources[i].dtype)),
                           sources[i].trained, i < own.size() ? own[i].packed : std::nullopt});
  }
  make_parameters(trained, sources, place);
  trained.options.parameter_hooks = trained.hooks();
  return trained;
}

std::unique_ptr<Reference> make_reference(const Config& config, const ParameterPlace& place,
                                          const TrainedModel& trained, Decoder& policy,
                                          SequenceParallel& attention, bool follows_rows) {
  const auto& [model, sharding, device, given, patches, kernel] = place;
  // An adapter that began at zero leaves the base model as the initial model. LLaMA-Factory uses
  // the base model for any adapter.
  if (config.preferences.ref_model.empty() && trained.lora) return base_model_reference(policy);
  const bool own = config.preferences.ref_model.empty();
  const std::string folder = own ? config.model.model_name_or_path : config.preferences.ref_model;
  const ModelConfig reference_config = own ? model : model_config_for(config, folder);
  require_same_vocabulary(config, model.spec, reference_config.spec);
  const std::vector<std::string> adapters = split_names(config.preferences.ref_model_adapters);
  // Parameters that the policy casts to bf16 at every use can be held in bf16: the values are the
  // same.
  const bool bf16 = trained.options.compute_dtype == at::kBFloat16;
  const bool all_bf16 = config.model.pure_bf16 || (bf16 && trained.lora);
  const at::ScalarType dtype = all_bf16 && adapters.empty() ? at::kBFloat16 : at::kFloat;
  std::vector<ParameterSource> sources = own && given != nullptr
                                             ? sources_of(*given, model, dtype)
                                             : sources_in(folder, config, reference_config, dtype);
  merge_adapters(adapters, reference_config, sources);
  for (ParameterSource& source : sources) {
    if (is_buffer(source.spec.role)) continue;
    if (all_bf16 || (bf16 && source.spec.use == ParameterUse::kCast)) {
      convert(source, at::kBFloat16);
    }
  }
  DecoderOptions options{.gradient_checkpointing = trained.options.gradient_checkpointing,
                         .compute_dtype = trained.options.compute_dtype,
                         .mlp_tiles = trained.options.mlp_tiles,
                         .expert_exchange = trained.options.expert_exchange};
  const bool is_sharded = sharding && !sharding->all_are_here();
  std::unique_ptr<ShardedParameters> sharded;
  if (is_sharded) {
    sharded = std::make_unique<ShardedParameters>(sources, *sharding);
    options.parameter_hooks = sharded.get();
  }
  const std::vector<NamedTensor> parameters =
      is_sharded ? sharded->parameters() : make_all(sources, device);
  std::unique_ptr<PictureFeatures> pictures;
  if (reference_config.spec.vision) {
    TORCH_CHECK(patches != nullptr && kernel != nullptr, "a model with a tower needs both");
    pictures = make_picture_features(reference_config.spec, parameters, options, *patches,
                                     attention, *kernel);
  }
  options.pictures = pictures.get();
  auto decoder = std::make_unique<Decoder>(reference_config.spec, parameters, attention, options);
  return reference_model(std::move(decoder), std::move(pictures), std::move(sharded), follows_rows);
}

}  // namespace longspan
