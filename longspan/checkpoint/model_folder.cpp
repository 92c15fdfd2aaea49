#include "longspan/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/models/model_place.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// File of each tensor, from the index or the single file's header.
std::map<std::string, std::string> files_of_tensors(const fs::path& folder) {
  std::map<std::string, std::string> files;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw UserError(fmt::format("{} is a file. Give the folder of the model: {}.", folder.string(),
                                folder.has_parent_path() ? folder.parent_path().string() : "."));
  }
  require_plain_weights(folder.string());
  if (is_there(folder / kSingle)) {
    for (const auto& entry : read_safetensors_header((folder / kSingle).string())) {
      files[entry.name] = (folder / kSingle).string();
    }
    return files;
  }
  const std::string index_path = (folder / kIndex).string();
  if (!is_there(index_path)) {
    const std::string pickled = pickled_weights(folder.string());
    throw UserError(fmt::format(
        "{} has neither {} nor {}. {}", folder.string(), kSingle, kIndex,
        !pickled.empty()
            ? fmt::format("It has {}, pickled weights; convert them: load the folder in "
                          "transformers and save_pretrained() it.",
                          pickled)
        : is_there(folder / "adapter_config.json")
            ? "It holds an adapter, not a model: name the model in model_name_or_path and this "
              "folder in adapter_name_or_path, or merge both by `longspan export`."
            : "Check the path, or make a random checkpoint with `longspan init`."));
  }
  const nlohmann::json index = read_json_file(index_path, "index of the weights", kMaxTableBytes);
  const JsonObject weight_map = JsonObject(index, index_path).object("weight_map");
  for (const auto& [name, shard] : weight_map.json().items()) {
    const fs::path shard_name(weight_map.get<std::string>(name));
    if (shard_name.has_parent_path()) {
      throw UserError(fmt::format("{}: shard {} of {} is outside of the folder.", index_path,
                                  shard_name.string(), name));
    }
    files[name] = (folder / shard_name).string();
  }
  return files;
}

/// Tensors that old or tied checkpoints carry and that are made anew or shared here.
bool is_redundant(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

struct Listing {
  std::vector<ParameterShape> wanted;
  /// Shard -> indices into `wanted`.
  std::map<std::string, std::vector<size_t>> shards;
};

/// Everything that can be known without reading tensor data.
Listing check(const std::string& folder, const ModelConfig& config) {
  Listing listing{parameter_shapes(config), {}};
  const auto files = files_of_tensors(folder);
  std::set<std::string> unexpected;
  for (const auto& [name, file] : files) {
    if (!is_redundant(name, config)) unexpected.insert(name);
  }
  std::map<std::string, std::map<std::string, SafetensorsEntry>> headers;
  std::vector<std::string> missing;
  for (size_t i = 0; i < listing.wanted.size(); ++i) {
    const auto& [name, shape] = listing.wanted[i];
    unexpected.erase(name);
    const auto file = files.find(name);
    if (file == files.end()) {
      missing.push_back(name);
      continue;
    }
    auto [header, is_new] = headers.try_emplace(file->second);
    if (is_new) {
      for (auto& entry : read_safetensors_header(file->second)) {
        header->second.emplace(entry.name, entry);
      }
    }
    const auto entry = header->second.find(name);
    if (entry == header->second.end()) {
      missing.push_back(fmt::format("{} (the index names {})", name, file->second));
      continue;
    }
    if (entry->second.shape != shape) {
      throw UserError(fmt::format(
          "{}: {} has shape [{}] but config.json asks for [{}]. The weights and the config do not "
          "belong together.",
          file->second, name, fmt::join(entry->second.shape, ", "), fmt::join(shape, ", ")));
    }
    if (!at::isFloatingType(entry->second.dtype)) {
      throw UserError(fmt::format(
          "{}: {} holds {} numbers; quantized checkpoints cannot be trained. Use the original one.",
          file->second, name, c10::toString(entry->second.dtype)));
    }
    listing.shards[file->second].push_back(i);
  }
  const auto complain = [&](const char* what, std::vector<std::string> names) {
    const size_t num_names = names.size();
    if (num_names > 3) names.resize(3);
    throw UserError(fmt::format("{}: {} ({}{}). config.json says {}, {}{}.", folder,
                                counted(num_names, what), fmt::join(names, ", "),
                                num_names > 3 ? ", ..." : "", config.architecture,
                                counted(config.num_layers, "layer"),
                                config.tie_word_embeddings ? ", tied embeddings" : ""));
  };
  if (!missing.empty()) complain("missing tensor", missing);
  if (!unexpected.empty()) complain("unexpected tensor", {unexpected.begin(), unexpected.end()});
  return listing;
}

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    default:
      TORCH_CHECK(false, "models are not saved as ", dtype);
  }
}

std::string updated_config(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::ordered_json json = parse_ordered_json(config.json, "config.json");
  // transformers 5 writes dtype, 4 writes torch_dtype; both read the latter.
  const char* key = json.contains("dtype") ? "dtype" : "torch_dtype";
  if (json.contains("dtype") && json.contains("torch_dtype")) json.erase("torch_dtype");
  json[key] = dtype_name(dtype);
  if (!json.contains("architectures")) json["architectures"] = {config.architecture};
  return json.dump(2) + "\n";
}

}  // namespace

void copy_tokenizer_files(const std::string& source_folder, const std::string& folder) {
  const fs::path source(source_folder), target(folder);
  constexpr const char* kNames[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "generation_config.json"};
  for (const char* name : kNames) {
    std::error_code error;
    if (!fs::is_regular_file(source / name, error)) continue;
    if (fs::equivalent(source / name, target / name, error)) continue;
    const std::string path = (source / name).string();
    write_file_atomically((target / name).string(),
                          InputFile(path, "tokenizer file").read_all(kMaxTableBytes));
  }
}

void remove_other_weights(const std::string& folder, const std::set<std::string>& keep) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name == kSingle || name == kIndex || name == "config.json" ||
                         name == "adapter_config.json" || name == "adapter_model.safetensors" ||
                         name == "value_head.safetensors" || name == "longspan_adapter.json" ||
                         (name.starts_with("model-") && name.ends_with(".safetensors"));
    if (weights && !keep.contains(name)) fs::remove(entry.path(), error);
  }
}

std::vector<ParameterSource> parameter_sources(const std::string& folder, const ModelConfig& config,
                                               at::ScalarType dtype) {
  const Listing listing = check(folder, config);
  std::vector<ParameterSource> sources;
  for (const auto& [name, shape] : listing.wanted) {
    sources.push_back({name, shape, dtype, /*trained=*/false, {}});
  }
  for (const auto& [shard, indices] : listing.shards) {
    std::map<std::string, at::Tensor> tensors;
    for (auto& [name, tensor] : read_safetensors(shard)) tensors[name] = tensor;
    for (const size_t i : indices) {
      sources[i].make = [tensor = tensors.at(sources[i].name), dtype] {
        return tensor.to(dtype, /*non_blocking=*/false, /*copy=*/true);
      };
    }
  }
  return sources;
}

std::vector<NamedTensor> load_parameters(const std::string& folder, const ModelConfig& config,
                                         at::ScalarType dtype) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSource& source : parameter_sources(folder, config, dtype)) {
    parameters.push_back({source.name, source.make()});
  }
  return parameters;
}

void check_model_folder(const std::string& folder, const ModelConfig& config) {
  check(folder, config);
}

void save_model_files(const std::string& folder, const ModelConfig& config, at::ScalarType dtype,
                      const std::string& source_folder,
                      const std::vector<std::pair<ParameterShape, std::string>>& files) {
  const fs::path target(folder);
  write_file_atomically((target / "config.json").string(), updated_config(config, dtype));
  if (!source_folder.empty()) copy_tokenizer_files(source_folder, folder);
  std::set<std::string> written{"config.json"};
  int64_t total_parameters = 0;
  nlohmann::ordered_json weight_map;
  for (const auto& [parameter, file] : files) {
    total_parameters += c10::multiply_integers(parameter.shape);
    weight_map[parameter.name] = file;
    written.insert(file);
  }
  if (!written.contains(kSingle)) {
    nlohmann::ordered_json index;
    index["metadata"] = {
        {"total_parameters", total_parameters},
        {"total_size", total_parameters * static_cast<int64_t>(c10::elementSize(dtype))}};
    index["weight_map"] = std::move(weight_map);
    write_file_atomically((target / kIndex).string(), index.dump(2) + "\n");
    written.insert(kIndex);
  }
  remove_other_weights(folder, written);
}

std::string weight_file_name(int number, int num_files) {
  return num_files == 1 ? kSingle
                        : fmt::format("model-{:05}-of-{:05}.safetensors", number, num_files);
}

void save_model_folder(const std::string& folder, const ModelConfig& config,
                       const std::vector<NamedTensor>& parameters, at::ScalarType dtype,
                       const std::string& source_folder, int64_t max_shard_bytes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw UserError(fmt::format("Cannot create {}: {}. Choose a folder that you may write to.",
                                folder, error.message()));
  }
  std::vector<std::vector<NamedTensor>> shards(1);
  int64_t shard_bytes = 0;
  for (const auto& parameter : parameters) {
    const int64_t num_bytes =
        parameter.tensor.numel() * static_cast<int64_t>(c10::elementSize(dtype));
    if (shard_bytes + num_bytes > max_shard_bytes && !shards.back().empty()) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(parameter);
    shard_bytes += num_bytes;
  }
  std::vector<std::pair<ParameterShape, std::string>> files;
  const int num_files = static_cast<int>(shards.size());
  for (int i = 0; i < num_files; ++i) {
    const std::string name = weight_file_name(i + 1, num_files);
    write_safetensors((fs::path(folder) / name).string(), shards[i], dtype);
    for (const auto& [parameter, tensor] : shards[i]) {
      files.push_back({{parameter, tensor.sizes().vec()}, name});
    }
  }
  save_model_files(folder, config, dtype, source_folder, files);
}

}  // namespace longspan
