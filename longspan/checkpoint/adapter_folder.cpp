#include "longspan/checkpoint/adapter_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/models/model_place.h"
#include "longspan/models/value_head.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kValueHead = "value_head.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

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
  const Json config = parse_ordered_json(*text, path.string());
  if (!config.is_object()) {
    throw UserError(fmt::format("{} is not a JSON object.", path.string()));
  }
  return config;
}

/// Keys that change what an adapter computes, and the values under which it is plain LoRA.
void require_plain_lora(const Json& config, const std::string& path) {
  const auto refuse = [&](const std::string& key, const Json& value) {
    throw UserError(fmt::format(
        "{}: {} is {}; only plain LoRA is supported. Merge the adapter into its model with PEFT "
        "(merge_and_unload) and train from that.",
        path, key, value.dump()));
  };
  const Json type = config.value("peft_type", Json("LORA"));
  if (type != "LORA") refuse("peft_type", type);
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    if (config.value(key, Json(false)) == true) refuse(key, config.at(key));
  }
  const Json bias = config.value("bias", Json("none"));
  if (!bias.is_null() && bias != "none") refuse("bias", bias);
  for (const char* key : {"modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication",
                          "target_parameters", "trainable_token_indices"}) {
    const Json value = config.value(key, Json());
    if (!value.is_null() && !value.empty()) refuse(key, value);
  }
}

/// Shapes that a model with this adapter has, by name.
std::map<std::string, std::vector<int64_t>> wanted_shapes(const ModelConfig& config,
                                                          const LoraShape& shape) {
  std::map<std::string, std::vector<int64_t>> wanted;
  for (const NamedTensor& parameter : new_lora_parameters(config, shape, 0)) {
    wanted[parameter.name] = parameter.tensor.sizes().vec();
  }
  return wanted;
}

LoraShape shape_from(const Json& config, const std::string& path) {
  LoraShape shape;
  try {
    shape.r = config.at("r").get<int64_t>();
    shape.alpha = config.at("lora_alpha").get<double>();
    shape.dropout = config.value("lora_dropout", 0.0);
    shape.rank_stabilized = config.value("use_rslora", Json(false)) == true;
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{} is broken: {}.", path, error.what()));
  }
  if (shape.r < 1) throw UserError(fmt::format("{}: r is {}.", path, shape.r));
  return shape;
}

}  // namespace

Adapter load_adapter(const std::string& folder, const ModelConfig& config) {
  const std::string config_path = (fs::path(folder) / kConfig).string();
  const std::string weights_path = (fs::path(folder) / kWeights).string();
  require_real_files(folder);
  const Json json = read_config(config_path);
  require_plain_lora(json, config_path);
  Adapter adapter;
  adapter.shape = shape_from(json, config_path);
  if (!is_there(weights_path)) {
    throw UserError(fmt::format("{} is missing.{}", weights_path,
                                is_there(fs::path(folder) / "adapter_model.bin")
                                    ? " Save adapter_model.bin as safetensors with PEFT."
                                    : ""));
  }
  // The names in the file say which modules have an adapter: target_modules may be a pattern.
  for (NamedTensor& tensor : read_safetensors(weights_path)) {
    std::string name = tensor.name;
    if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
    if (name.starts_with("v_head.")) continue;
    const size_t part = name.rfind(".lora_");
    if (part == std::string::npos || !is_lora_parameter(name)) {
      throw UserError(fmt::format("{}: {} is not a matrix of a LoRA adapter of a linear layer.",
                                  weights_path, tensor.name));
    }
    const std::string layer = name.substr(0, part), module = layer.substr(layer.rfind('.') + 1);
    const std::vector<std::string>& known = lora_modules();
    if (std::find(known.begin(), known.end(), module) == known.end()) {
      throw UserError(fmt::format("{}: {} has an adapter; supported are {}.", weights_path, layer,
                                  fmt::join(known, ", ")));
    }
    adapter.shape.modules.insert(module);
    adapter.parameters.push_back({name, tensor.tensor.to(at::kFloat).clone()});
  }
  auto wanted = wanted_shapes(config, adapter.shape);
  for (const auto& [name, tensor] : adapter.parameters) {
    const auto found = wanted.find(name);
    if (found == wanted.end() || tensor.sizes() != at::IntArrayRef(found->second)) {
      throw UserError(fmt::format(
          "{}: {} [{}] does not fit the model{}. The adapter and the model do not belong together.",
          weights_path, name, fmt::join(tensor.sizes(), ", "),
          found == wanted.end()
              ? ""
              : fmt::format(", which asks for [{}]", fmt::join(found->second, ", "))));
    }
    wanted.erase(found);
  }
  // Layers without an adapter are the base model's, but half an adapter is a broken file.
  std::set<std::string> names;
  for (const NamedTensor& parameter : adapter.parameters) names.insert(parameter.name);
  for (const std::string& name : names) {
    std::string other = name;
    other[other.rfind(".lora_") + 6] = name.find(".lora_A.") == std::string::npos ? 'A' : 'B';
    if (names.contains(other)) continue;
    throw UserError(fmt::format("{}: {} is there, but {} is not.", weights_path, name, other));
  }
  if (names.empty()) throw UserError(fmt::format("{} holds no adapter.", weights_path));
  return adapter;
}

void save_adapter(const std::string& folder, const LoraShape& shape,
                  const std::vector<NamedTensor>& parameters, at::ScalarType dtype,
                  const std::string& base_model) {
  fs::create_directories(folder);
  std::vector<NamedTensor> matrices;
  for (const auto& [name, tensor] : parameters) {
    if (is_lora_parameter(name)) matrices.push_back({std::string(kPrefix) + name, tensor});
  }
  const auto number = [](double x) {
    return x == static_cast<double>(static_cast<int64_t>(x)) ? Json(static_cast<int64_t>(x))
                                                             : Json(x);
  };
  const Json config = {{"base_model_name_or_path", base_model},
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
                       {"rank_pattern", Json::object()},
                       {"alpha_pattern", Json::object()},
                       {"revision", nullptr},
                       {"target_modules", shape.modules},
                       {"task_type", "CAUSAL_LM"},
                       {"use_dora", false},
                       {"use_rslora", shape.rank_stabilized}};
  write_file_atomically((fs::path(folder) / kConfig).string(), config.dump(2) + "\n");
  write_safetensors((fs::path(folder) / kWeights).string(), matrices, dtype);
  copy_tokenizer_files(base_model, folder);
}

std::vector<NamedTensor> load_value_head(const std::string& folder, const ModelConfig& config) {
  const std::string path = (fs::path(folder) / kValueHead).string();
  if (!is_there(path)) return {};
  std::map<std::string, at::Tensor> tensors;
  for (auto& [name, tensor] : read_safetensors(path)) tensors[name] = tensor;
  const std::vector<ParameterShape> wanted{{kValueHeadWeight, {1, config.hidden_size}},
                                           {kValueHeadBias, {1}}};
  std::vector<NamedTensor> head;
  for (const auto& [name, sizes] : wanted) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.sizes() != at::IntArrayRef(sizes)) {
      throw UserError(
          fmt::format("{}: wanted is {} of shape [{}].", path, name, fmt::join(sizes, ", ")));
    }
    head.push_back({name, found->second.to(at::kFloat).clone()});
  }
  return head;
}

void save_value_head(const std::string& folder, const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> head;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.name.starts_with("v_head.")) head.push_back(parameter);
  }
  if (!head.empty()) {
    write_safetensors((fs::path(folder) / kValueHead).string(), head, at::kFloat);
  }
}

}  // namespace longspan
