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

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_matrices.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/plain_lora.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/checkpoint/stacked_adapters.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"
#include "longspan/models/composite.h"
#include "longspan/models/model_place.h"
#include "longspan/models/vocabulary.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kValueHead = "value_head.safetensors";

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

/// Checks that the key holds what PEFT writes. The weights, not this key, say which modules have an
/// adapter.
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
  // Accepts 4.0 as a rank.
  shape.r =
      whole_number(config.json().value("r", Json()), config.source() + ": r", 1, kMostIndexed);
  if (!config.has("lora_alpha")) config.fail("lora_alpha must be a number; it is missing");
  shape.alpha = config.get<double>("lora_alpha");
  shape.dropout = config.get<double>("lora_dropout", shape.dropout);
  if (!(shape.dropout >= 0 && shape.dropout < 1)) {
    config.fail(fmt::format("lora_dropout is {}; it must be from 0 to below 1", shape.dropout));
  }
  shape.rank_stabilized = config.get<bool>("use_rslora", false);
  shape.decomposed = config.get<bool>("use_dora", false);
  require_names(config, "target_modules");
  return shape;
}

/// Returns modules_to_save.
std::set<std::string> modules_saved_whole(const JsonObject& config, const ModelConfig& model) {
  if (!config.has("modules_to_save") || config.value("modules_to_save").empty()) return {};
  const auto names = config.get<std::vector<std::string>>("modules_to_save");
  const auto refuse = [&](const std::string& reason) {
    config.fail(
        fmt::format("modules_to_save is [{}], which is not supported here: {} Merge the adapter "
                    "into its model with PEFT (merge_and_unload) and train from that",
                    shortened(fmt::format("{}", fmt::join(names, ", ")), 60), reason));
  };
  if (is_composite(model)) refuse("the model takes pictures.");
  for (const std::string& name : names) {
    if (name.empty() || name.find(',') != std::string::npos) refuse("a name is not a module's.");
  }
  std::set<std::string> modules;
  try {
    modules = whole_modules_from(fmt::format("{}", fmt::join(names, ",")), model.spec);
  } catch (const UserError& error) {
    refuse(error.what());
  }
  const bool ties = config.get<bool>("ensure_weight_tying", false);
  if (trains_tied_head(model.spec, modules) && !ties) {
    refuse(
        "the model's head is its embedding (tie_word_embeddings), and PEFT trained a copy for one "
        "use alone.");
  }
  return modules;
}

/// Returns the adapters of whole parameters in target_parameters: linear layers that the model's
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
          "target_parameters has {}; such adapters are supported only for experts that the model's "
          "files store stacked in one tensor. Merge the adapter into its model with PEFT "
          "(merge_and_unload) and "
          "train from that",
          name));
    }
    modules.insert(found->module);
  }
  return stacked_adapters(model, modules);
}

}  // namespace

ModelConfig with_adapted_tower(const std::vector<std::string>& adapters,
                               const ModelConfig& config) {
  for (const std::string& folder : adapters) {
    const std::string path = model_file(folder, kWeights);
    if (!takes_pictures(config) || !is_there(path)) continue;
    const SafetensorsFile file(path);
    const bool adapts = std::ranges::any_of(file.entries(), [&](const auto& entry) {
      return entry.name.starts_with(kPeftPrefix) &&
             is_tower_module(config, entry.name.substr(kPeftPrefix.size()));
    });
    if (adapts) return with_pictures(config);
  }
  return config;
}

ModelConfig with_adapted_vocabulary(const std::vector<std::string>& adapters,
                                    const ModelConfig& config) {
  int64_t num_tokens = config.spec.vocab_size;
  for (const std::string& folder : adapters) {
    const std::string path = model_file(folder, kWeights);
    if (!is_there(path)) continue;
    const Json json = read_config(model_file(folder, kConfig));
    if (!json.is_object() || json.value("modules_to_save", Json()).empty()) continue;
    const SafetensorsFile file(path);
    int64_t num_rows = 0;
    for (const SafetensorsEntry& entry : file.entries()) {
      if (!entry.name.starts_with(kPeftPrefix) || entry.shape.size() != 2) continue;
      const std::string name =
          name_in_language_model(config, entry.name.substr(kPeftPrefix.size()));
      if (name == kEmbeddingName || name == kHeadName) num_rows = entry.shape.front();
    }
    if (num_rows > config.spec.vocab_size) num_tokens = num_rows;
  }
  return with_vocabulary(config, num_tokens);
}

Adapter load_adapter(const std::string& folder, const ModelConfig& config) {
  const std::string config_path = model_file(folder, kConfig);
  const std::string weights_path = model_file(folder, kWeights);
  require_real_files(folder);
  const Json json = read_config(config_path);
  const JsonObject keys(json, config_path);
  require_plain_lora(keys);
  Adapter adapter;
  adapter.shape = shape_from(keys);
  adapter.shape.whole_modules = modules_saved_whole(keys, config);
  if (!is_there(weights_path)) {
    throw UserError(fmt::format("{} is missing.{}", weights_path,
                                is_there(fs::path(folder) / "adapter_model.bin")
                                    ? " Save adapter_model.bin as safetensors with PEFT."
                                    : ""));
  }
  const SafetensorsFile file(weights_path);
  adapter.parameters = read_adapter_matrices(file, stacks_from(keys, config.spec), config,
                                             config_path, adapter.shape);
  return adapter;
}

void save_adapter(const std::string& folder, const ModelConfig& config, const Adapter& adapter,
                  at::ScalarType dtype, const std::string& base_model, const std::string& start) {
  const LoraShape& shape = adapter.shape;
  using Written = nlohmann::ordered_json;
  fs::create_directories(folder);
  std::vector<NamedTensor> matrices;
  std::set<std::string> modules = shape.modules, parameters;
  std::map<std::string, at::Tensor> rest;
  for (const auto& [name, tensor] : adapter.parameters) rest[name] = tensor.detach();
  const auto take = [&](const std::string& name) { return rest.extract(name).mapped(); };
  for (const StackedAdapter& stack : stacked_adapters(config.spec, shape.modules)) {
    modules.erase(stack.module);
    parameters.insert(stack.target);
    // A loaded adapter may leave out layers.
    if (!rest.contains(lora_a_name(stack.parts.front()))) continue;
    std::vector<at::Tensor> parts;
    for (const ParameterSpec& part : stack.parts) {
      parts.push_back(take(lora_a_name(part)));
      parts.push_back(take(lora_b_name(part)));
    }
    for (const auto& [name, tensor] : joined(stack, parts)) {
      matrices.push_back({std::string(kPeftPrefix) + name, tensor});
    }
  }
  for (const auto& [name, tensor] : adapter.parameters) {
    if (!rest.contains(name)) continue;
    matrices.push_back({std::string(kPeftPrefix) + name_in_adapter(config, name), tensor});
  }
  // PEFT's copy of the head, which ensure_weight_tying ties to the embedding.
  const bool ties = trains_tied_head(config.spec, shape.whole_modules);
  for (const auto& [name, tensor] : adapter.parameters) {
    if (!ties || name != kEmbeddingName) continue;
    matrices.push_back({std::string(kPeftPrefix) + name_in_adapter(config, kHeadName), tensor});
  }
  std::vector<std::string> excluded;
  for (const std::string& linear : excluded_linears(config.spec, shape)) {
    excluded.push_back(name_in_adapter(config, linear));
  }
  const auto number = [](double x) {
    const std::optional<int64_t> whole = as_whole(x);
    return whole ? Written(*whole) : Written(x);
  };
  Written written = {
      {"base_model_name_or_path", base_model},
      {"bias", "none"},
      {"exclude_modules", excluded.empty() ? Written(nullptr) : Written(excluded)},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", start.empty() ? Written(true) : Written(start)},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", number(shape.alpha)},
      {"lora_dropout", shape.dropout},
      {"modules_to_save",
       shape.whole_modules.empty() ? Written(nullptr) : Written(shape.whole_modules)},
      {"peft_type", "LORA"},
      {"r", shape.r},
      {"rank_pattern", Written::object()},
      {"alpha_pattern", Written::object()},
      {"revision", nullptr},
      {"target_modules", modules},
      {"target_parameters", parameters.empty() ? Written(nullptr) : Written(parameters)},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", shape.decomposed},
      {"use_rslora", shape.rank_stabilized}};
  if (ties) written["ensure_weight_tying"] = true;
  write_file_atomically((fs::path(folder) / kConfig).string(), written.dump(2) + "\n");
  write_safetensors((fs::path(folder) / kWeights).string(), matrices, dtype);
  copy_tokenizer_files(base_model, folder);
}

std::vector<NamedTensor> load_value_head(const std::string& folder, const ModelConfig& config) {
  const std::string path = model_file(folder, kValueHead);
  if (!is_there(path)) return {};
  const SafetensorsFile file(path);
  std::vector<NamedTensor> head;
  const std::vector<ParameterSpec> parameters = value_head_parameters(config.spec.hidden_size);
  for (const SafetensorsEntry& entry : file.entries()) {
    if (std::ranges::find(parameters, entry.name, &ParameterSpec::stored_as) != parameters.end()) {
      continue;
    }
    throw UserError(fmt::format("{}: {} is not part of a value head, which is one linear layer.",
                                path, entry.name));
  }
  for (const ParameterSpec& parameter : parameters) {
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

int64_t num_value_head_tensors(const std::string& folder) {
  return std::ranges::count_if(
      SafetensorsFile(model_file(folder, kWeights)).entries(),
      [](const SafetensorsEntry& entry) { return is_of_value_head(entry.name); });
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
