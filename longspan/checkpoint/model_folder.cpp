#include "longspan/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/folder_tensors.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/written_names.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/models/composite.h"
#include "longspan/models/dtype_words.h"
#include "longspan/models/own_head.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Keys for the number of layers that predict further tokens, in DeepSeek, transformers and Qwen.
/// transformers loads that many where it drafts with them.
constexpr const char* kLayersForFurtherTokens[] = {"num_nextn_predict_layers", "num_mtp_layers",
                                                   "mtp_num_hidden_layers"};

std::string updated_config(const ModelConfig& config, at::ScalarType dtype) {
  nlohmann::ordered_json json = parse_ordered_json(config.json, "config.json");
  // transformers 5 writes dtype, 4 writes torch_dtype; both read torch_dtype.
  const char* key = json.contains("dtype") ? "dtype" : "torch_dtype";
  if (json.contains("dtype") && json.contains("torch_dtype")) json.erase("torch_dtype");
  json[key] = std::string(long_name_of(dtype));
  nlohmann::ordered_json& keys = language_keys(json);
  for (const char* named : kLayersForFurtherTokens) {
    if (keys.contains(named)) keys[named] = 0;  // such layers are not saved
  }
  if (&keys != &json) {
    for (const char* named : {"dtype", "torch_dtype"}) {
      if (keys.contains(named)) keys[named] = std::string(long_name_of(dtype));
    }
  }
  if (!json.contains("architectures")) json["architectures"] = {config.architecture};
  if (config.stored != StoredNumbers{})
    json.erase("quantization_config");  // saved as plain numbers
  return json.dump(2) + "\n";
}

/// Returns the tensors of the model's other parts, which are copied unchanged. Returns none where
/// the folder was removed during training; the trained weights are saved all the same.
std::vector<StoredTensor> copied_tensors(const std::string& folder, const ModelConfig& config) {
  if (!copies_vision(config)) return {};
  try {
    return find_copied_tensors(folder, config);
  } catch (const UserError&) {
    return {};
  }
}

/// Writes the tensors into one file, one at a time.
std::vector<SafetensorsWriter::Planned> write_copied_tensors(
    const std::vector<StoredTensor>& copied, const std::string& path) {
  std::vector<SafetensorsWriter::Planned> planned;
  for (const StoredTensor& tensor : copied) {
    planned.push_back({tensor.entry->name, tensor.entry->dtype, tensor.entry->shape});
  }
  SafetensorsWriter file(path, planned);
  for (const StoredTensor& tensor : copied) file.write(tensor.file->read(*tensor.entry));
  file.commit();
  return planned;
}

}  // namespace

int num_copied_files(const ModelConfig& config) { return copies_vision(config) ? 1 : 0; }

int64_t num_copied_bytes(const std::string& folder, const ModelConfig& config) {
  int64_t num_bytes = 0;
  for (const StoredTensor& tensor : copied_tensors(folder, config)) {
    num_bytes += tensor.entry->end - tensor.entry->begin;
  }
  return num_bytes;
}

void copy_tokenizer_files(const std::string& source_folder, const std::string& folder) {
  const fs::path source(source_folder), target(folder);
  for (const std::string& name : tokenizer_file_names()) {
    std::error_code error;
    std::string path;
    try {
      path = model_file(source_folder, name);
    } catch (const UserError&) {
      continue;  // refused at loading; the trained weights are saved all the same
    }
    if (!fs::is_regular_file(path, error)) continue;
    if (fs::equivalent(source / name, target / name, error)) continue;
    write_file_atomically((target / name).string(),
                          InputFile(path, "tokenizer file").read_all(kMaxTableBytes));
  }
}

void remove_other_weights(const std::string& folder, const std::set<std::string>& keep) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_numbered = name.starts_with("model-") && name.ends_with(".safetensors");
    const std::vector<std::string>& names = model_file_names();
    const bool of_model = is_numbered || std::ranges::find(names, name) != names.end();
    if (of_model && !keep.contains(name)) fs::remove(entry.path(), error);
  }
}

std::vector<ParameterSource> parameter_sources(const std::string& folder, const ModelConfig& config,
                                               at::ScalarType dtype) {
  std::vector<ParameterSource> sources;
  for (const StoredParameter& found : find_parameters(folder, config)) {
    const at::ScalarType held = stored_dtype(found.spec, dtype);
    ParameterMaker make = [found, held] { return found.read(held); };
    if (found.holds_runs()) {
      make = {make, [found, held](int64_t begin, int64_t end) {
                return found.read_run(begin, end, held);
              }};
    }
    sources.push_back({found.spec, held, /*trained=*/false, std::move(make)});
    if (found.stored.format == StoredNumbers::Format::kGrouped) {
      sources.back().make_packed = [found] { return found.read_packed(); };
    }
  }
  return sources;
}

std::vector<NamedTensor> load_parameters(const std::string& folder, const ModelConfig& config,
                                         at::ScalarType dtype) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSource& source : parameter_sources(folder, config, dtype)) {
    parameters.push_back({source.spec.name, source.make()});
  }
  return parameters;
}

void check_model_folder(const std::string& folder, const ModelConfig& config) {
  find_parameters(folder, config);
}

ModelConfig load_folder_config(const std::string& folder) {
  ModelConfig config = load_model_config(folder);
  if (has_own_head(folder, config)) config = with_own_head(config);
  check_model_folder(folder, config);
  return config;
}

void save_model_files(const std::string& folder, const ModelConfig& config, at::ScalarType dtype,
                      const std::string& source_folder,
                      const std::vector<std::pair<ParameterShape, std::string>>& files) {
  const fs::path target(folder);
  write_file_atomically((target / "config.json").string(), updated_config(config, dtype));
  if (!source_folder.empty()) copy_tokenizer_files(source_folder, folder);
  std::set<std::string> written{"config.json"};
  int64_t total_parameters = 0, total_bytes = 0;
  nlohmann::ordered_json weight_map;
  std::map<std::string, at::ScalarType> dtypes;
  for (const ParameterSpec& parameter : parameters_of(config.spec)) {
    dtypes[name_in_files(config, parameter.stored_as)] = stored_dtype(parameter, dtype);
  }
  for (const auto& [parameter, file] : files) {
    const int64_t numbers = c10::multiply_integers(parameter.shape);
    total_parameters += numbers;
    total_bytes += numbers * static_cast<int64_t>(c10::elementSize(dtypes.at(parameter.name)));
    weight_map[parameter.name] = file;
    written.insert(file);
  }
  if (const auto copied = copied_tensors(source_folder, config); !copied.empty()) {
    const int num_files = static_cast<int>(written.size());  // less config.json, plus this file
    const std::string file = weight_file_name(num_files, num_files);
    for (const SafetensorsWriter::Planned& tensor :
         write_copied_tensors(copied, (target / file).string())) {
      const int64_t numbers = c10::multiply_integers(tensor.shape);
      total_parameters += numbers;
      total_bytes += numbers * static_cast<int64_t>(c10::elementSize(tensor.dtype));
      weight_map[tensor.name] = file;
    }
    written.insert(file);
  }
  if (!written.contains(kSingle)) {
    nlohmann::ordered_json index;
    index["metadata"] = {{"total_parameters", total_parameters}, {"total_size", total_bytes}};
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
  const ParameterTable specs(parameters_of(config.spec));
  std::vector<std::vector<NamedTensor>> shards(1);  // by their names in the program
  int64_t shard_bytes = 0;
  for (const auto& [name, tensor] : parameters) {
    const int64_t num_bytes = tensor.numel() * static_cast<int64_t>(c10::elementSize(dtype));
    if (shard_bytes + num_bytes > max_shard_bytes && !shards.back().empty() &&
        begins_stored(specs.of(name))) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back({name, tensor});
    shard_bytes += num_bytes;
  }
  std::vector<std::pair<ParameterShape, std::string>> files;
  const int num_files = static_cast<int>(shards.size()) + num_copied_files(config);
  for (int i = 0; i < static_cast<int>(shards.size()); ++i) {
    const std::string name = weight_file_name(i + 1, num_files);
    std::vector<SafetensorsWriter::Planned> planned;
    for (const NamedTensor& parameter : shards[i]) {
      const ParameterSpec& spec = specs.of(parameter.name);
      if (!begins_stored(spec)) continue;
      const std::string stored = name_in_files(config, spec.stored_as);
      planned.push_back({stored, stored_dtype(spec, dtype), stored_shape(spec)});
      files.push_back({{stored, stored_shape(spec)}, name});
    }
    SafetensorsWriter file((fs::path(folder) / name).string(), std::move(planned));
    for (const NamedTensor& parameter : shards[i]) {
      file.write(as_stored(specs.of(parameter.name), parameter.tensor));
    }
    file.commit();
  }
  save_model_files(folder, config, dtype, source_folder, files);
}

}  // namespace longspan
