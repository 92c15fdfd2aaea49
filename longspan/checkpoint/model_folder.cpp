#include "longspan/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/checkpoint/weight_files.h"
#include "longspan/checkpoint/written_names.h"
#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/models/model_files.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// File of each tensor, from the index or the single file's header.
std::map<std::string, std::string> files_of_tensors(const std::string& folder) {
  WeightFiles weights = weight_files(folder);
  if (weights.single.empty()) return std::move(weights.shards);
  std::map<std::string, std::string> files;
  const SafetensorsFile file(weights.single);
  for (const SafetensorsEntry& entry : file.entries()) files[entry.name] = file.path();
  return files;
}

struct Listing {
  struct Found {
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsEntry* entry;
  };
  std::vector<ParameterSpec> wanted;
  std::vector<Found> found;  // of each
};

/// The number of layers decides how much is made of config.json alone, and so is the first to be
/// compared with the weights.
void require_layers(const std::string& folder, const ModelConfig& config,
                    const std::map<std::string, std::string>& files) {
  std::set<std::string> layers;
  for (const auto& [name, file] : files) {
    if (const std::optional<std::string> layer = layer_of_tensor(name)) layers.insert(*layer);
  }
  if (config.num_layers <= std::ssize(layers)) return;
  throw UserError(fmt::format(
      "{}: config.json says num_hidden_layers {}, and the weights have {}. The weights and the "
      "config do not belong together.",
      folder, config.num_layers, counted(std::ssize(layers), "layer")));
}

/// Everything that can be known without reading tensor data.
Listing check(const std::string& folder, const ModelConfig& config) {
  const auto files = files_of_tensors(folder);
  require_layers(folder, config, files);
  const ModelSpec spec = spec_of(config);
  Listing listing{parameters_of(spec), {}};
  std::set<std::string> unexpected;
  for (const auto& [name, file] : files) {
    if (!is_redundant_tensor(spec, name)) unexpected.insert(name);
  }
  struct Header {
    std::shared_ptr<const SafetensorsFile> file;
    std::map<std::string_view, const SafetensorsEntry*> entries;
  };
  std::map<std::string, Header> headers;
  std::vector<std::string> missing;
  for (size_t i = 0; i < listing.wanted.size(); ++i) {
    const std::string& name = listing.wanted[i].stored_as;
    const std::vector<int64_t> shape = stored_shape(listing.wanted[i]);
    unexpected.erase(name);
    const auto file = files.find(name);
    if (file == files.end()) {
      if (begins_stored(listing.wanted[i])) missing.push_back(name);
      continue;
    }
    auto [header, is_new] = headers.try_emplace(file->second);
    if (is_new) {
      header->second.file = std::make_shared<const SafetensorsFile>(file->second);
      for (const SafetensorsEntry& entry : header->second.file->entries()) {
        header->second.entries.emplace(entry.name, &entry);
      }
    }
    const auto found = header->second.entries.find(name);
    if (found == header->second.entries.end()) {
      missing.push_back(fmt::format("{} (the index names {})", name, file->second));
      continue;
    }
    const SafetensorsEntry* const entry = found->second;
    if (entry->shape != shape) {
      throw UserError(fmt::format(
          "{}: {} has shape [{}] but config.json asks for [{}]. The weights and the config do not "
          "belong together.",
          file->second, name, fmt::join(entry->shape, ", "), fmt::join(shape, ", ")));
    }
    if (!at::isFloatingType(entry->dtype)) {
      throw UserError(fmt::format(
          "{}: {} holds {} numbers; quantized checkpoints cannot be trained. Use the original one.",
          file->second, name, safetensors_name(entry->dtype)));
    }
    listing.found.push_back({header->second.file, entry});
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

at::Tensor read_parameter(const SafetensorsFile& file, const SafetensorsEntry& entry,
                          const ParameterSpec& spec, at::ScalarType dtype) {
  if (!spec.stored_part) return file.read(entry, dtype);
  const int64_t row = spec.num_elements() / spec.shape.at(0);  // numbers in one
  at::Tensor part = at::empty(spec.shape, at::TensorOptions(dtype));
  file.read_run(entry, spec.stored_part->begin * row,
                (spec.stored_part->begin + spec.shape[0]) * row, part.view({-1}));
  return part;
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
  for (const std::string& name : tokenizer_file_names()) {
    std::error_code error;
    std::string path;
    try {
      path = model_file(source_folder, name);
    } catch (const UserError&) {
      continue;  // refused when it was loaded: what was trained since is saved all the same
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
  for (size_t i = 0; i < listing.wanted.size(); ++i) {
    const at::ScalarType held = stored_dtype(listing.wanted[i], dtype);
    sources.push_back({listing.wanted[i], held, /*trained=*/false,
                       [found = listing.found[i], held, spec = listing.wanted[i]] {
                         return read_parameter(*found.file, *found.entry, spec, held);
                       }});
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
  check(folder, config);
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
  for (const ParameterSpec& parameter : parameters_of(spec_of(config))) {
    dtypes[parameter.stored_as] = stored_dtype(parameter, dtype);
  }
  for (const auto& [parameter, file] : files) {
    const int64_t numbers = c10::multiply_integers(parameter.shape);
    total_parameters += numbers;
    total_bytes += numbers * static_cast<int64_t>(c10::elementSize(dtypes.at(parameter.name)));
    weight_map[parameter.name] = file;
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
  const ParameterTable specs(parameters_of(spec_of(config)));
  std::vector<std::vector<NamedTensor>> shards(1);  // by the names that they are known by here
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
  const int num_files = static_cast<int>(shards.size());
  for (int i = 0; i < num_files; ++i) {
    const std::string name = weight_file_name(i + 1, num_files);
    std::vector<SafetensorsWriter::Planned> planned;
    for (const NamedTensor& parameter : shards[i]) {
      const ParameterSpec& spec = specs.of(parameter.name);
      if (!begins_stored(spec)) continue;
      planned.push_back({spec.stored_as, stored_dtype(spec, dtype), stored_shape(spec)});
      files.push_back({{spec.stored_as, stored_shape(spec)}, name});
    }
    SafetensorsWriter file((fs::path(folder) / name).string(), std::move(planned));
    for (const NamedTensor& parameter : shards[i]) file.write(parameter.tensor);
    file.commit();
  }
  save_model_files(folder, config, dtype, source_folder, files);
}

}  // namespace longspan
