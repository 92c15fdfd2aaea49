#include "longspan/train/trained_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/names.h"
#include "longspan/config/user_error.h"
#include "longspan/models/dropout.h"
#include "longspan/models/value_head.h"

namespace longspan {
namespace {

LoraShape lora_shape_of(const Config& config) {
  LoraShape shape;
  shape.r = config.lora_rank;
  shape.alpha = static_cast<double>(config.lora_alpha.value_or(2 * config.lora_rank));
  shape.dropout = config.lora_dropout;
  shape.rank_stabilized = config.use_rslora;
  shape.modules = lora_modules_from(config.lora_target);
  return shape;
}

/// What the configuration says of an adapter that is there already must be true of it.
void require_same_shape(const Config& config, const LoraShape& adapter) {
  const Config defaults;
  const auto refuse = [&](const char* key, const std::string& given, const std::string& has) {
    throw UserError(
        fmt::format("{}: {} is given, but the adapter {} has {}. An adapter keeps the shape that "
                    "it has: remove "
                    "the key.",
                    key, given, split_names(config.adapter_name_or_path).back(), has));
  };
  if (config.lora_rank != defaults.lora_rank && config.lora_rank != adapter.r) {
    refuse("lora_rank", std::to_string(config.lora_rank), std::to_string(adapter.r));
  }
  if (config.lora_alpha && static_cast<double>(*config.lora_alpha) != adapter.alpha) {
    refuse("lora_alpha", std::to_string(*config.lora_alpha), fmt::format("{}", adapter.alpha));
  }
  if (config.use_rslora && !adapter.rank_stabilized) refuse("use_rslora", "true", "none");
  if (config.lora_target != defaults.lora_target &&
      lora_modules_from(config.lora_target) != adapter.modules) {
    refuse("lora_target", config.lora_target, fmt::format("{}", fmt::join(adapter.modules, ",")));
  }
}

/// Adds W += scale B A of each adapter to the weights.
void merge_adapters(const std::vector<std::string>& folders, const ModelConfig& model,
                    std::vector<NamedTensor>& parameters) {
  for (const std::string& folder : folders) {
    const Adapter adapter = load_adapter(folder, model);
    parameters.insert(parameters.end(), adapter.parameters.begin(), adapter.parameters.end());
    merge_lora(parameters, adapter.shape.scale());
  }
}

/// As torch starts a linear layer: uniform within 1 / sqrt(D).
std::vector<NamedTensor> new_value_head(const ModelConfig& model, uint64_t seed) {
  const int64_t D = model.hidden_size;
  const double bound = 1.0 / std::sqrt(static_cast<double>(D));
  const at::Tensor weight_1D = at::empty({1, D}, at::kFloat), bias_1 = at::empty({1}, at::kFloat);
  uint64_t number = 0;
  for (const at::Tensor& tensor : {weight_1D, bias_1}) {
    float* data = tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const double u =
          static_cast<double>(mix_seed(mix_seed(seed, 0x7a1e), number++) >> 11) * 0x1p-53;
      data[i] = static_cast<float>((2 * u - 1) * bound);
    }
  }
  return {{kValueHeadWeight, weight_1D}, {kValueHeadBias, bias_1}};
}

void add_value_head(const Config& config, const ModelConfig& model, TrainedModel& trained) {
  std::vector<NamedTensor> head;
  const std::vector<std::string> adapters = split_names(config.adapter_name_or_path);
  if (!adapters.empty()) head = load_value_head(adapters.back(), model);
  if (head.empty()) head = load_value_head(config.model_name_or_path, model);
  if (head.empty()) head = new_value_head(model, static_cast<uint64_t>(config.seed));
  for (NamedTensor& parameter : head) trained.parameters.push_back(std::move(parameter));
}

/// Heads decide how the ranks share a row, tokens what is scored.
void require_same_heads(const Config& config, const ModelConfig& model,
                        const ModelConfig& reference) {
  if (reference.vocab_size == model.vocab_size && reference.num_heads == model.num_heads &&
      reference.num_kv_heads == model.num_kv_heads && reference.head_dim == model.head_dim) {
    return;
  }
  throw UserError(fmt::format(
      "ref_model {} has {} query and {} kv heads of {} and {} tokens; the trained model has {} and "
      "{} of {}, and {} tokens. Choose a reference with the same heads and vocabulary.",
      config.ref_model, reference.num_heads, reference.num_kv_heads, reference.head_dim,
      reference.vocab_size, model.num_heads, model.num_kv_heads, model.head_dim, model.vocab_size));
}

}  // namespace

int64_t TrainedModel::num_parameters() const {
  int64_t total = 0;
  for (const NamedTensor& parameter : parameters) total += parameter.tensor.numel();
  return total;
}

int64_t TrainedModel::num_trained() const {
  int64_t total = 0;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) total += parameter.tensor.numel();
  }
  return total;
}

void check_trained_model(const Config& config, const ModelConfig& model) {
  if (config.finetuning_type == "lora") lora_modules_from(config.lora_target);
  const std::vector<std::string> adapters = split_names(config.adapter_name_or_path);
  for (const std::string& folder : adapters) {
    const Adapter adapter = load_adapter(folder, model);
    if (folder == adapters.back()) require_same_shape(config, adapter.shape);
  }
  if (config.finetuning_type == "freeze") {
    std::vector<NamedTensor> named;
    for (const ParameterShape& shape : parameter_shapes(model)) {
      named.push_back({shape.name, at::empty({0})});
    }
    freeze_but(config, model, named);
  }
  if (config.ref_model.empty()) return;
  const ModelConfig reference = load_model_config(config.ref_model);
  require_same_heads(config, model, reference);
  check_model_folder(config.ref_model, reference);
  for (const std::string& folder : split_names(config.ref_model_adapters)) {
    load_adapter(folder, reference);
  }
}

void freeze_but(const Config& config, const ModelConfig& model,
                std::vector<NamedTensor>& parameters) {
  const int64_t wanted = std::abs(config.freeze_trainable_layers), L = model.num_layers;
  if (wanted > L) {
    throw UserError(
        fmt::format("freeze_trainable_layers: {} layers, but the model has {}", wanted, L));
  }
  const int64_t first = config.freeze_trainable_layers > 0 ? L - wanted : 0;
  std::set<std::string> found;
  const std::vector<std::string> modules = split_names(config.freeze_trainable_modules),
                                 extra = split_names(config.freeze_extra_modules);
  const auto trains = [&](const std::string& name) {
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) {
      for (const std::string& module : extra) {
        if (name.find(module) == std::string::npos) continue;
        found.insert(module);
        return true;
      }
      return false;
    }
    const size_t dot = name.find('.', kLayers.size());
    const int64_t layer = std::stoll(name.substr(kLayers.size(), dot - kLayers.size()));
    const std::string inside = name.substr(dot + 1);
    bool named = false;
    for (const std::string& module : modules) {
      if (module != "all" && inside.substr(0, inside.find('.')) != module) continue;
      found.insert(module);
      named = true;
    }
    return named && layer >= first && layer < first + wanted;
  };
  for (NamedTensor& parameter : parameters) {
    parameter.tensor.set_requires_grad(trains(parameter.name));
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
}

TrainedModel load_trained_model(const Config& config, const ModelConfig& model, at::Device device) {
  const bool bf16 = config.bf16 || config.pure_bf16, lora = config.finetuning_type == "lora";
  TrainedModel trained;
  trained.options.gradient_checkpointing = !config.disable_gradient_checkpointing;
  trained.options.compute_dtype = bf16 ? at::kBFloat16 : at::kFloat;
  trained.options.mlp_tiles = config.tiled_mlp.value_or(0);
  std::vector<std::string> merged = split_names(config.adapter_name_or_path), kept;
  if (!merged.empty()) {
    kept.push_back(merged.back());
    merged.pop_back();
  }
  // Merging in bf16 would round twice.
  const bool small = config.pure_bf16 || (bf16 && lora);
  trained.parameters = load_parameters(config.model_name_or_path, model,
                                       small && merged.empty() ? at::kBFloat16 : at::kFloat);
  merge_adapters(merged, model, trained.parameters);
  for (NamedTensor& parameter : trained.parameters) {
    if (small) parameter.tensor = parameter.tensor.to(at::kBFloat16);
    parameter.tensor = parameter.tensor.detach().to(device).set_requires_grad(!lora);
  }
  if (config.finetuning_type == "freeze") freeze_but(config, model, trained.parameters);

  std::vector<NamedTensor> added;
  if (lora) {
    if (kept.empty()) {
      trained.lora = lora_shape_of(config);
      added = new_lora_parameters(model, *trained.lora, static_cast<uint64_t>(config.seed));
    } else {
      Adapter adapter = load_adapter(kept[0], model);
      require_same_shape(config, adapter.shape);
      // Dropout is training's, not the adapter's.
      if (config.lora_dropout > 0) adapter.shape.dropout = config.lora_dropout;
      trained.lora = adapter.shape;
      added = std::move(adapter.parameters);
    }
    trained.options.lora_scale = trained.lora->scale();
    trained.options.lora_dropout = trained.lora->dropout;
  }
  const size_t num_base = trained.parameters.size();
  trained.parameters.insert(trained.parameters.end(), added.begin(), added.end());
  if (config.stage == "rm") add_value_head(config, model, trained);
  for (size_t i = num_base; i < trained.parameters.size(); ++i) {
    at::Tensor& tensor = trained.parameters[i].tensor;
    if (config.pure_bf16) tensor = tensor.to(at::kBFloat16);
    tensor = tensor.detach().to(device).set_requires_grad(true);
  }
  if (config.stage == "rm") {
    // Nothing flows through it; weight decay must not move it either.
    for (NamedTensor& parameter : trained.parameters) {
      if (parameter.name == "lm_head.weight") parameter.tensor.set_requires_grad(false);
    }
  }
  return trained;
}

std::unique_ptr<Reference> make_reference(const Config& config, const TrainedModel& trained,
                                          const ModelConfig& model, Decoder& policy,
                                          SequenceParallel& attention, at::Device device) {
  // An adapter that began at zero leaves the base model as the start; so LLaMA-Factory takes it for
  // any adapter.
  if (config.ref_model.empty() && trained.lora) return base_model_reference(policy);
  const std::string folder =
      config.ref_model.empty() ? config.model_name_or_path : config.ref_model;
  const ModelConfig reference_config = config.ref_model.empty() ? model : load_model_config(folder);
  require_same_heads(config, model, reference_config);
  const std::vector<std::string> adapters = split_names(config.ref_model_adapters);
  // What the policy casts to bf16 at every use can be kept in it: the numbers are the same.
  const bool bf16 = trained.options.compute_dtype == at::kBFloat16;
  const bool all_bf16 = config.pure_bf16 || (bf16 && trained.lora);
  std::vector<NamedTensor> parameters = load_parameters(
      folder, reference_config, all_bf16 && adapters.empty() ? at::kBFloat16 : at::kFloat);
  merge_adapters(adapters, reference_config, parameters);
  for (NamedTensor& parameter : parameters) {
    const bool used_in_fp32 = parameter.name.ends_with("norm.weight") ||
                              parameter.name.ends_with(".bias") ||
                              parameter.name == "model.embed_tokens.weight";
    if (all_bf16 || (bf16 && !used_in_fp32)) {
      parameter.tensor = parameter.tensor.to(at::kBFloat16);
    }
    parameter.tensor = parameter.tensor.detach().to(device);
  }
  return reference_model(std::make_unique<Decoder>(
      reference_config, std::move(parameters), attention,
      DecoderOptions{.gradient_checkpointing = trained.options.gradient_checkpointing,
                     .compute_dtype = trained.options.compute_dtype,
                     .mlp_tiles = trained.options.mlp_tiles}));
}

}  // namespace longspan
