#include "longspan/checkpoint/folder_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/wanted_tensors.h"
#include "longspan/checkpoint/weight_files.h"
#include "longspan/input/input_file.h"
#include "longspan/models/composite.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// A tensor's place in the folder.
struct Place {
  std::string file, name;  // the name in that file
};

/// The headers of a folder's files, each read once.
class Headers {
 public:
  /// Returns a null entry where the file lacks the tensor.
  StoredTensor find(const Place& place) {
    const Header& header = of(place.file);
    const auto found = header.entries.find(place.name);
    return {header.file, found == header.entries.end() ? nullptr : found->second};
  }
  const std::vector<SafetensorsEntry>& entries(const std::string& file) {
    return of(file).file->entries();
  }

 private:
  struct Header {
    std::shared_ptr<const SafetensorsFile> file;
    std::map<std::string_view, const SafetensorsEntry*> entries;
  };

  const Header& of(const std::string& file) {
    auto [header, is_new] = headers_.try_emplace(file);
    if (is_new) {
      header->second.file = std::make_shared<const SafetensorsFile>(file);
      for (const SafetensorsEntry& entry : header->second.file->entries()) {
        header->second.entries.emplace(entry.name, &entry);
      }
    }
    return header->second;
  }

  std::map<std::string, Header> headers_;
};

/// Whether the numbers are equal, whatever the dtypes. Reads a few megabytes at a time. A NaN
/// equals nothing, as transformers compares.
bool same_numbers(const StoredTensor& one, const StoredTensor& other) {
  constexpr int64_t kChunk = int64_t{1} << 22;
  if (one.entry->shape != other.entry->shape) return false;
  if (!has_plain_numbers(one.entry->dtype) || !has_plain_numbers(other.entry->dtype)) {
    if (one.entry->dtype != other.entry->dtype) return false;
    const auto bytes = [](const StoredTensor& tensor) {
      return tensor.file->read(*tensor.entry).flatten().view(at::kByte);
    };
    return at::equal(bytes(one), bytes(other));
  }
  const int64_t count = c10::multiply_integers(one.entry->shape);
  const at::ScalarType dtype =
      one.entry->dtype == other.entry->dtype ? one.entry->dtype : at::kDouble;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, count);
    const auto read = [&](const StoredTensor& tensor) {
      at::Tensor numbers = at::empty({end - begin}, at::TensorOptions(dtype));
      tensor.file->read_run(*tensor.entry, begin, end, numbers);
      return numbers;
    };
    if (!at::equal(read(one), read(other))) return false;
  }
  return true;
}

/// The tensors of a folder's files, read from their headers.
struct FolderTensors {
  Headers headers;
  std::map<std::string, Place> places;  // by the language model's names (models/composite.h)
  std::vector<Place> copied;            // tensors that saving copies unchanged
};

/// Throws where a tensor is in the files twice with different numbers: in two shards, or by the two
/// names that a model of texts and pictures may give it. With equal numbers the second is
/// redundant.
void require_same_numbers(Headers& headers, const Place& one, const Place& other) {
  const StoredTensor first = headers.find(one), second = headers.find(other);
  if (first.entry == nullptr || second.entry == nullptr || same_numbers(first, second)) return;
  throw UserError(fmt::format(
      "{} of {} and {} of {} are the same parameter with different values. Remove the tensor that "
      "does not belong to the model.",
      one.name, one.file, other.name, other.file));
}

/// Reads the index and the headers. Like transformers, takes all tensors of the index's files.
FolderTensors tensors_of(const std::string& folder, const ModelConfig& config) {
  const WeightFiles weights = weight_files(folder);
  FolderTensors tensors;
  const auto add = [&](const std::string& name, const std::string& file) {
    const Place place{file, name};
    if (is_copied_tensor(config, name)) {
      tensors.copied.push_back(place);
      return;
    }
    const auto [known, is_new] =
        tensors.places.try_emplace(name_in_language_model(config, name), place);
    if (!is_new) require_same_numbers(tensors.headers, known->second, place);
  };
  std::set<std::string> files;
  for (const auto& [name, file] : weights.shards) {
    add(name, file);
    files.insert(file);
  }
  if (!weights.single.empty()) files.insert(weights.single);
  for (const std::string& file : files) {
    // Parameters of a missing shard are reported by name later.
    if (weights.single.empty() && !is_there(file)) continue;
    for (const SafetensorsEntry& entry : tensors.headers.entries(file)) {
      const auto named = weights.shards.find(entry.name);
      if (named == weights.shards.end() || named->second != file) add(entry.name, file);
    }
  }
  return tensors;
}

/// Throws where the weights have another number of layers than config.json. This check comes first,
/// since that number decides how much is built from config.json alone.
void require_layers(const std::string& folder, const ModelConfig& config,
                    const std::map<std::string, Place>& places) {
  std::set<std::string> layers;
  for (const auto& [name, place] : places) {
    if (const std::optional<std::string> layer = layer_of_tensor(name)) layers.insert(*layer);
  }
  if (config.spec.num_layers <= std::ssize(layers)) return;
  throw UserError(fmt::format(
      "{}: config.json says num_hidden_layers {}, and the weights have {}. The weights and the "
      "config do not belong together.",
      folder, config.spec.num_layers, counted(std::ssize(layers), "layer")));
}

/// Returns the names of biases of zeros that linear layers in 4 bits have beside config.json:
/// AutoGPTQ saved one for each of Llama's.
std::vector<std::string> biases_of_zeros(FolderTensors& tensors, const ModelConfig& config) {
  std::vector<std::string> names;
  if (config.stored.four_bits() == nullptr) return names;
  std::set<std::string> own;
  for (const ParameterSpec& parameter : parameters_of(config.spec)) own.insert(parameter.stored_as);
  for (const auto& [name, place] : tensors.places) {
    const std::string linear = name.substr(0, name.rfind('.'));
    if (own.contains(name) || !tensors.places.contains(linear + std::string(kQweightEnding)))
      continue;
    const StoredTensor bias = tensors.headers.find(place);
    if (bias.entry == nullptr || bias.entry->shape.size() != 1) continue;
    if (!has_plain_numbers(bias.entry->dtype)) continue;
    if (bias.file->read(*bias.entry, at::kFloat).count_nonzero().item<int64_t>() == 0) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace

std::vector<StoredParameter> find_parameters(const std::string& folder, const ModelConfig& config) {
  FolderTensors tensors = tensors_of(folder, config);
  auto& [headers, places, copied] = tensors;
  require_layers(folder, config, places);
  const ModelSpec& spec = config.spec;
  std::vector<StoredParameter> listing;
  std::set<std::string> unexpected;
  for (const auto& [name, place] : places) {
    if (!why_left_out(spec, name)) unexpected.insert(name);
  }
  for (const std::string& name : biases_of_zeros(tensors, config)) unexpected.erase(name);
  const auto has = [&known = places](const std::string& name) { return known.contains(name); };
  std::vector<std::string> missing;
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    const TensorPart part = part_of(parameter, spec.tied_head, has);
    const WantedTensors of_parameter = wanted_tensors(parameter, part, config, has);
    StoredParameter stored{.spec = parameter,
                           .numbers = {},
                           .begin = part.begin,
                           .scales = {},
                           .stored = of_parameter.stored};
    for (WantedTensor wanted : of_parameter.tensors) {
      unexpected.erase(wanted.name);
      const auto place = places.find(wanted.name);
      if (place == places.end()) {
        if (begins_stored(parameter)) missing.push_back(wanted.name);
        continue;
      }
      const StoredTensor found = headers.find(place->second);
      if (found.entry == nullptr) {
        missing.push_back(
            fmt::format("{} (the index names {})", place->second.name, place->second.file));
        continue;
      }
      stored.turned = holds_transposes(parameter, found);
      if (stored.turned) std::swap(wanted.shape.at(1), wanted.shape.at(2));
      require_shape_and_dtype(wanted, found);
      stored.*wanted.place = found;
    }
    listing.push_back(std::move(stored));
  }
  const auto complain = [&](const char* what, std::vector<std::string> names) {
    const size_t num_names = names.size();
    if (num_names > 3) names.resize(3);
    throw UserError(fmt::format("{}: {} ({}{}). config.json says {}, {}{}.", folder,
                                counted(num_names, what), fmt::join(names, ", "),
                                num_names > 3 ? ", ..." : "", config.architecture,
                                counted(config.spec.num_layers, "layer"),
                                config.spec.tied_head ? ", tied embeddings" : ""));
  };
  if (!missing.empty()) complain("missing tensor", missing);
  if (!unexpected.empty()) complain("unexpected tensor", {unexpected.begin(), unexpected.end()});
  if (copies_vision(config) && copied.empty()) {
    throw UserError(fmt::format(
        "{}: config.json says {}, but the weights have no tensors of its vision part ({}). "
        "If that part was removed, replace config.json by its text_config.",
        folder, config.architecture, describe_copied_tensors(config)));
  }
  return listing;
}

std::map<LeftOut, int64_t> left_out_tensors(const std::string& folder, const ModelConfig& config) {
  std::map<LeftOut, int64_t> counts;
  FolderTensors tensors = tensors_of(folder, config);
  const auto& places = tensors.places;
  if (const size_t count = biases_of_zeros(tensors, config).size(); count > 0) {
    counts[LeftOut::kZeroBias] = static_cast<int64_t>(count);
  }
  for (const auto& [name, place] : places) {
    if (const std::optional<LeftOut> why = why_left_out(config.spec, name)) ++counts[*why];
  }
  // A tied head is read where the files have no embedding.
  if (!places.contains(kEmbeddingName)) counts.erase(LeftOut::kTiedHead);
  return counts;
}

bool has_own_head(const std::string& folder, const ModelConfig& config) {
  if (!config.spec.tied_head) return false;
  FolderTensors tensors = tensors_of(folder, config);
  std::vector<StoredTensor> both;
  for (const char* name : {kHeadName, kEmbeddingName}) {
    const auto place = tensors.places.find(name);
    if (place == tensors.places.end()) return false;
    both.push_back(tensors.headers.find(place->second));
    if (both.back().entry == nullptr) return false;
  }
  return !same_numbers(both[0], both[1]);
}

std::vector<StoredTensor> find_copied_tensors(const std::string& folder,
                                              const ModelConfig& config) {
  FolderTensors of_folder = tensors_of(folder, config);
  std::vector<StoredTensor> tensors;
  for (const Place& place : of_folder.copied) {
    tensors.push_back(of_folder.headers.find(place));
    if (tensors.back().entry == nullptr) {
      throw UserError(
          fmt::format("{} has no {}, which the index of the weights names. Download it again.",
                      place.file, place.name));
    }
  }
  return tensors;
}

}  // namespace longspan
