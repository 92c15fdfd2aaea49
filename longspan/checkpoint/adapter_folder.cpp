#include "longspan/checkpoint/adapter_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/checkpoint/stacked_adapters.h"
#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"
#include "longspan/models/model_place.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kValueHead = "value_head.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kOfValueHead = "v_head.";  // what adapters of TRL and others may hold

Json read_config(const fs::path& path) {
  const auto text = read_text_file_if_there(path.string(), "configuration of an adapter");
  if (!text) {
    throw UserError(
        fmt::format("{} is missing: {} is not the folder of a LoRA adapter.{}", path.string(),
                    path.parent_path().string(),
                    is_there(path.parent_path() / "config.json")
                        ? " It holds a whole model: name that in model_name_or_path, and remove "
                          "adapter_name_or_path."
                        : ""));
  }
  return parse_json(*text, path.string());
}

/// Keys that change what an adapter computes, and the values under which it is plain LoRA.
void require_plain_lora(const JsonObject& config) {
  const auto refuse = [&](const std::string& key, const Json& value) {
    config.fail(fmt::format(
        "{} is {}; only plain LoRA is supported. Merge the adapter into its model with PEFT "
        "(merge_and_unload) and train from that",
        key, value.dump()));
  };
  const Json& keys = config.json();
  const Json type = keys.value("peft_type", Json("LORA"));
  if (type != "LORA") refuse("peft_type", type);
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    if (config.get<bool>(key, false)) refuse(key, keys.at(key));
  }
  const Json bias = keys.value("bias", Json("none"));
  if (!bias.is_null() && bias != "none") refuse("bias", bias);
  for (const char* key : {"modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication",
                          "trainable_token_indices"}) {
    if (config.has(key) && !keys.at(key).empty()) refuse(key, keys.at(key));
  }
}

/// Shapes that a model with this adapter has, by name.
std::map<std::string, std::vector<int64_t>> wanted_shapes(const ModelConfig& config,
                                                          const LoraShape& shape) {
  std::map<std::string, std::vector<int64_t>> wanted;
  for (const ParameterSpec& matrix : lora_parameters_of(config.spec, shape)) {
    wanted[matrix.name] = matrix.shape;
  }
  return wanted;
}

/// Which modules have an adapter the weights say; this only looks whether it is what PEFT writes.
void require_names(const JsonObject& config, const char* key) {
  if (!config.has(key)) return;
  const Json& value = config.value(key);
  const bool is_list = value.is_array() && std::ranges::all_of(value, [](const Json& name) {
                         return name.is_string();
                       });
  if (is_list || value.is_string()) return;
  config.fail(fmt::format("{} must be a name, a pattern or a list of names", key));
}

LoraShape shape_from(const JsonObject& config) {
  LoraShape shape;
  // 4.0 is a rank as well.
  shape.r =
      whole_number(config.json().value("r", Json()), config.source() + ": r", 1, kMostIndexed);
  if (!config.has("lora_alpha")) config.fail("lora_alpha must be a number; it is missing");
  shape.alpha = config.get<double>("lora_alpha");
  shape.dropout = config.get<double>("lora_dropout", shape.dropout);
  if (!(shape.dropout >= 0 && shape.dropout < 1)) {
    config.fail(fmt::format("lora_dropout is {}; it must be from 0 to below 1", shape.dropout));
  }
  shape.rank_stabilized = config.get<bool>("use_rslora", false);
  require_names(config, "target_modules");
  return shape;
}

/// Weights are in floating point.
void require_floating(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  if (has_plain_numbers(entry.dtype)) return;
  throw UserError(
      fmt::format("{}: {} holds {} numbers; F32, BF16, F16 and F64 are supported. Convert it, or "
                  "take the original.",
                  file.path(), entry.name, safetensors_name(entry.dtype)));
}

/// Of a linear layer, by its name in the file: an adapter may also be on an embedding.
bool is_matrix_of_lora(const std::string& name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

/// r of the config against the matrices' own, before anything is made of it.
void require_rank(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t r,
                  const std::string& config_path) {
  const size_t side = entry.name.find(".lora_A.") != std::string::npos ? 0 : 1;
  if (entry.shape.size() == 2 && entry.shape[side] == r) return;
  throw UserError(fmt::format(
      "{}: {} has shape [{}], but r is {} in {}. The weights and the config do not belong "
      "together.",
      file.path(), entry.name, fmt::join(entry.shape, ", "), r, config_path));
}

/// Adapters of whole parameters, which target_parameters names: of linear layers that the model's
/// files stack.
std::vector<StackedAdapter> stacks_from(const JsonObject& config, const ModelSpec& model) {
  if (!config.has("target_parameters") || config.value("target_parameters").empty()) return {};
  const std::vector<StackedAdapter> known = stacked_adapters(model, [&] {
    const std::vector<std::string> all = lora_targets(model);
    return std::set<std::string>(all.begin(), all.end());
  }());
  std::set<std::string> modules;
  for (const auto& name : config.get<std::vector<std::string>>("target_parameters")) {
    const auto found = std::ranges::find_if(known, [&](const StackedAdapter& stack) {
      return stack.target == name || stack.target.ends_with("." + name) ||
             name.ends_with("." + stack.target);
    });
    if (found == known.end()) {
      config.fail(fmt::format(
          "target_parameters has {}; adapters of parameters are supported where a model's files "
          "stack its experts. Merge the adapter into its model with PEFT (merge_and_unload) and "
          "train from that",
          name));
    }
    modules.insert(found->module);
  }
  return stacked_adapters(model, modules);
}

/// The two matrices of a stack in the file.
struct StackInFile {
  const StackedAdapter* stack;
  const SafetensorsEntry *a = nullptr, *b = nullptr;
};

/// Takes the matrix if it is one of these stacks'.
bool take(std::vector<StackInFile>& stacks, const std::string& name,
          const SafetensorsEntry& entry) {
  for (StackInFile& found : stacks) {
    if (name == found.stack->a_name) {
      found.a = &entry;
      return true;
    }
    if (name == found.stack->b_name) {
      found.b = &entry;
      return true;
    }
  }
  return false;
}

/// Both matrices, of their shapes.
void require_stack(const SafetensorsFile& file, const StackInFile& found, int64_t r) {
  const StackedAdapter& stack = *found.stack;
  if (found.a == nullptr || found.b == nullptr) {
    throw UserError(fmt::format("{}: {} is there, but {} is not.", file.path(),
                                found.a == nullptr ? stack.b_name : stack.a_name,
                                found.a == nullptr ? stack.a_name : stack.b_name));
  }
  const std::vector<int64_t>& weight = stack.parts.front().shape;
  const int64_t rows = counted_product({r, std::ssize(stack.parts)}, "an adapter's rows");
  const std::vector<int64_t> a_shape{rows, weight[1]}, b_shape{weight[0], rows};
  for (const auto& [entry, shape] : {std::pair{found.a, a_shape}, std::pair{found.b, b_shape}}) {
    require_floating(file, *entry);
    if (entry->shape == shape) continue;
    throw UserError(fmt::format(
        "{}: {} [{}] does not fit the model, which asks for [{}] where r is {}. The adapter and "
        "the model do not belong together.",
        file.path(), entry->name, fmt::join(entry->shape, ", "), fmt::join(shape, ", "), r));
  }
}

}  // namespace

Adapter load_adapter(const std::string& folder, const ModelConfig& config) {
  const std::string config_path = model_file(folder, kConfig);
  const std::string weights_path = model_file(folder, kWeights);
  require_real_files(folder);
  const Json json = read_config(config_path);
  const JsonObject keys(json, config_path);
  require_plain_lora(keys);
  Adapter adapter;
  adapter.shape = shape_from(keys);
  if (!is_there(weights_path)) {
    throw UserError(fmt::format("{} is missing.{}", weights_path,
                                is_there(fs::path(folder) / "adapter_model.bin")
                                    ? " Save adapter_model.bin as safetensors with PEFT."
                                    : ""));
  }
  // The names in the file say which modules have an adapter: target_modules may be a pattern.
  const SafetensorsFile file(weights_path);
  const ModelSpec& model = config.spec;
  const std::vector<std::string> known = lora_targets(model);
  const std::vector<StackedAdapter> stacks = stacks_from(keys, model);
  std::vector<StackInFile> in_file;
  for (const StackedAdapter& stack : stacks) in_file.push_back({&stack});
  std::vector<std::pair<std::string, const SafetensorsEntry*>> matrices;
  for (const SafetensorsEntry& tensor : file.entries()) {
    std::string name = tensor.name;
    if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
    if (name.starts_with(kOfValueHead) || take(in_file, name, tensor)) continue;
    const size_t part = name.rfind(".lora_");
    if (part == std::string::npos || !is_matrix_of_lora(name)) {
      throw UserError(fmt::format("{}: {} is not a matrix of a LoRA adapter of a linear layer.",
                                  weights_path, tensor.name));
    }
    const std::string layer = name.substr(0, part), module = layer.substr(layer.rfind('.') + 1);
    if (std::find(known.begin(), known.end(), module) == known.end()) {
      throw UserError(fmt::format("{}: {} has an adapter; supported are {}.", weights_path, layer,
                                  fmt::join(known, ", ")));
    }
    adapter.shape.modules.insert(module);
    require_floating(file, tensor);
    require_rank(file, tensor, adapter.shape.r, config_path);
    matrices.emplace_back(std::move(name), &tensor);
  }
  std::erase_if(in_file, [](const StackInFile& s) { return s.a == nullptr && s.b == nullptr; });
  for (const StackInFile& found : in_file) {
    require_stack(file, found, adapter.shape.r);
    adapter.shape.modules.insert(found.stack->module);
  }
  auto wanted = wanted_shapes(config, adapter.shape);
  for (const auto& [name, entry] : matrices) {
    const auto found = wanted.find(name);
    if (found == wanted.end() || entry->shape != found->second) {
      throw UserError(fmt::format(
          "{}: {} [{}] does not fit the model{}. The adapter and the model do not belong together.",
          weights_path, name, fmt::join(entry->shape, ", "),
          found == wanted.end()
              ? ""
              : fmt::format(", which asks for [{}]", fmt::join(found->second, ", "))));
    }
    wanted.erase(found);
  }
  // Layers without an adapter are the base model's, but half an adapter is a broken file.
  std::set<std::string> names;
  for (const auto& [name, entry] : matrices) names.insert(name);
  for (const std::string& name : names) {
    std::string other = name;
    other[other.rfind(".lora_") + 6] = name.find(".lora_A.") == std::string::npos ? 'A' : 'B';
    if (names.contains(other)) continue;
    throw UserError(fmt::format("{}: {} is there, but {} is not.", weights_path, name, other));
  }
  if (names.empty() && in_file.empty())
    throw UserError(fmt::format("{} holds no adapter.", weights_path));
  for (const auto& [name, entry] : matrices) {
    adapter.parameters.push_back({name, file.read(*entry, at::kFloat)});
  }
  for (const StackInFile& found : in_file) {
    for (NamedTensor& matrix : taken_apart(*found.stack, file.read(*found.a, at::kFloat),
                                           file.read(*found.b, at::kFloat))) {
      adapter.parameters.push_back(std::move(matrix));
    }
  }
  return adapter;
}

void save_adapter(const std::string& folder, const ModelConfig& config, const LoraShape& shape,
                  const std::vector<NamedTensor>& adapter, at::ScalarType dtype,
                  const std::string& base_model) {
  using Written = nlohmann::ordered_json;
  fs::create_directories(folder);
  std::vector<NamedTensor> matrices;
  std::set<std::string> modules = shape.modules, parameters;
  std::map<std::string, at::Tensor> rest;
  for (const auto& [name, tensor] : adapter) rest[name] = tensor.detach();
  const auto take = [&](const std::string& name) { return rest.extract(name).mapped(); };
  for (const StackedAdapter& stack : stacked_adapters(config.spec, shape.modules)) {
    modules.erase(stack.module);
    parameters.insert(stack.target);
    // Of an adapter that was loaded some layers may have none.
    if (!rest.contains(lora_a_name(stack.parts.front()))) continue;
    std::vector<at::Tensor> parts;
    for (const ParameterSpec& part : stack.parts) {
      parts.push_back(take(lora_a_name(part)));
      parts.push_back(take(lora_b_name(part)));
    }
    for (const auto& [name, tensor] : joined(stack, parts)) {
      matrices.push_back({std::string(kPrefix) + name, tensor});
    }
  }
  for (const auto& [name, tensor] : adapter) {
    if (rest.contains(name)) matrices.push_back({std::string(kPrefix) + name, tensor});
  }
  const auto number = [](double x) {
    const std::optional<int64_t> whole = as_whole(x);
    return whole ? Written(*whole) : Written(x);
  };
  const Written written = {
      {"base_model_name_or_path", base_model},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", number(shape.alpha)},
      {"lora_dropout", shape.dropout},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", shape.r},
      {"rank_pattern", Written::object()},
      {"alpha_pattern", Written::object()},
      {"revision", nullptr},
      {"target_modules", modules},
      {"target_parameters", parameters.empty() ? Written(nullptr) : Written(parameters)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", shape.rank_stabilized}};
  write_file_atomically((fs::path(folder) / kConfig).string(), written.dump(2) + "\n");
  write_safetensors((fs::path(folder) / kWeights).string(), matrices, dtype);
  copy_tokenizer_files(base_model, folder);
}

std::vector<NamedTensor> load_value_head(const std::string& folder, const ModelConfig& config) {
  const std::string path = model_file(folder, kValueHead);
  if (!is_there(path)) return {};
  const SafetensorsFile file(path);
  std::vector<NamedTensor> head;
  for (const ParameterSpec& parameter : value_head_parameters(config.spec.hidden_size)) {
    const std::string& name = parameter.stored_as;
    const std::vector<int64_t>& sizes = parameter.shape;
    const auto found = std::ranges::find(file.entries(), name, &SafetensorsEntry::name);
    if (found == file.entries().end() || found->shape != sizes) {
      throw UserError(
          fmt::format("{}: wanted is {} of shape [{}].", path, name, fmt::join(sizes, ", ")));
    }
    require_floating(file, *found);
    head.push_back({parameter.name, file.read(*found, at::kFloat)});
  }
  return head;
}

std::vector<NamedTensor> value_head_among(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs) {
  std::vector<NamedTensor> head;
  for (const NamedTensor& parameter : parameters) {
    if (is_value_head(specs.of(parameter.name).role)) head.push_back(parameter);
  }
  return head;
}

void save_value_head(const std::string& folder, const std::vector<NamedTensor>& head) {
  if (head.empty()) return;
  write_safetensors((fs::path(folder) / kValueHead).string(), head, at::kFloat);
}

}  // namespace longspan
