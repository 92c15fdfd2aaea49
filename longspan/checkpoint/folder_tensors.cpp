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

#include "longspan/checkpoint/fp8_blocks.h"
#include "longspan/checkpoint/mxfp4.h"
#include "longspan/checkpoint/weight_files.h"
#include "longspan/config/user_error.h"
#include "longspan/models/composite.h"
#include "longspan/spec/file_tensors.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Where the folder has a tensor.
struct Place {
  std::string file, name;  // the name in that file
};

/// By the language model's names (models/composite.h), from the index or the single file's header.
/// `copied`: takes the tensors of the parts that saving copies as they are.
std::map<std::string, Place> places_of_tensors(const std::string& folder, const ModelConfig& config,
                                               std::vector<Place>& copied) {
  const WeightFiles weights = weight_files(folder);
  std::map<std::string, Place> places;
  const auto add = [&](const std::string& name, const std::string& file) {
    if (is_copied_tensor(config, name)) {
      copied.push_back({file, name});
    } else {
      places[name_in_language_model(config, name)] = {file, name};
    }
  };
  for (const auto& [name, file] : weights.shards) add(name, file);
  if (weights.single.empty()) return places;
  const SafetensorsFile file(weights.single);
  for (const SafetensorsEntry& entry : file.entries()) add(entry.name, file.path());
  return places;
}

/// The headers of a folder's files, each read once.
class Headers {
 public:
  /// Its entry is null where the file has no such tensor.
  StoredTensor find(const Place& place) {
    auto [header, is_new] = headers_.try_emplace(place.file);
    if (is_new) {
      header->second.file = std::make_shared<const SafetensorsFile>(place.file);
      for (const SafetensorsEntry& entry : header->second.file->entries()) {
        header->second.entries.emplace(entry.name, &entry);
      }
    }
    const auto found = header->second.entries.find(place.name);
    return {header->second.file, found == header->second.entries.end() ? nullptr : found->second};
  }

 private:
  struct Header {
    std::shared_ptr<const SafetensorsFile> file;
    std::map<std::string_view, const SafetensorsEntry*> entries;
  };
  std::map<std::string, Header> headers_;
};

/// The number of layers decides how much is made of config.json alone, and so is the first to be
/// compared with the weights.
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

/// What a parameter is of a tensor.
struct Part {
  std::string name;            // of the tensor, as the language model calls it
  std::vector<int64_t> shape;  // of all of it
  int64_t begin;               // the part's first number
};

/// A tensor that a parameter is read from: its name in the language model, its shape, and what it
/// holds.
struct WantedTensor {
  enum class Holds { kNumbers, kBytesOfMxfp4, kFp8 };
  std::string name;
  std::vector<int64_t> shape;
  Holds holds = Holds::kNumbers;
};

/// One or, of quantized numbers, these and their scales.
struct WantedTensors {
  std::vector<WantedTensor> tensors;
  StoredNumbers stored;
};

/// Where the parameter is, by its spec.
Part part_of(const ParameterSpec& parameter, const std::map<std::string, Place>& places) {
  if (const auto& stack = parameter.stored_in_stack;
      stack && places.contains(stack->tensor) && !places.contains(parameter.stored_as)) {
    return {stack->tensor, stack->shape, stack->begin};
  }
  return {parameter.stored_as, stored_shape(parameter), begin_in_stored(parameter)};
}

/// MXFP4's blocks and scales, where the files have some of them and not the matrix.
std::optional<WantedTensors> wanted_of_mxfp4(const ParameterSpec& spec, const Part& part,
                                             const ModelConfig& config,
                                             const std::map<std::string, Place>& places) {
  const std::string blocks = part.name + "_blocks", scales = part.name + "_scales";
  const bool may_be = spec.stored_part && spec.stored_part->stacked && spec.shape.size() == 2;
  if (!may_be || places.contains(part.name) ||
      !(places.contains(blocks) || places.contains(scales))) {
    return std::nullopt;
  }
  using enum WantedTensor::Holds;
  const int64_t count = spec.stored_part->num_rows;
  return WantedTensors{
      {{blocks, mxfp4_blocks_shape(count, spec.shape[0], spec.shape[1]), kBytesOfMxfp4},
       {scales, mxfp4_scales_shape(count, spec.shape[0], spec.shape[1]), kBytesOfMxfp4}},
      config.stored};
}

/// A matrix in fp8 and its scales, where the files have scales of it.
std::optional<WantedTensors> wanted_of_fp8(const ParameterSpec& spec, const Part& part,
                                           const ModelConfig& config,
                                           const std::map<std::string, Place>& places) {
  const std::string scales = part.name + kFp8Scales;
  if (spec.shape.size() != 2 || part.shape != spec.shape || !places.contains(scales)) {
    return std::nullopt;
  }
  const StoredNumbers& stored = config.stored;
  return WantedTensors{{{part.name, part.shape, WantedTensor::Holds::kFp8},
                        {scales, fp8_scales_shape(spec.shape[0], spec.shape[1], stored.block_rows,
                                                  stored.block_columns)}},
                       stored};
}

/// What the files may hold a parameter in: its numbers; or what config.json says that there is in
/// their place.
WantedTensors wanted_tensors(const ParameterSpec& spec, const Part& part, const ModelConfig& config,
                             const std::map<std::string, Place>& places) {
  std::optional<WantedTensors> quantized;
  switch (config.stored.format) {
    case StoredNumbers::Format::kPlain:
      break;
    case StoredNumbers::Format::kMxfp4:
      quantized = wanted_of_mxfp4(spec, part, config, places);
      break;
    case StoredNumbers::Format::kFp8:
      quantized = wanted_of_fp8(spec, part, config, places);
      break;
  }
  return quantized.value_or(WantedTensors{{{part.name, part.shape}}, {}});
}

void require_shape_and_dtype(const WantedTensor& wanted, const StoredTensor& found) {
  const auto& [file, entry] = found;
  if (entry->shape != wanted.shape) {
    throw UserError(fmt::format(
        "{}: {} has shape [{}] but config.json asks for [{}]. The weights and the config do not "
        "belong together.",
        file->path(), entry->name, fmt::join(entry->shape, ", "), fmt::join(wanted.shape, ", ")));
  }
  const char* const dtype = safetensors_name(entry->dtype);
  switch (wanted.holds) {
    case WantedTensor::Holds::kBytesOfMxfp4:
      if (entry->dtype == at::kByte) return;
      throw UserError(fmt::format("{}: {} holds {} numbers, and MXFP4 has bytes (U8).",
                                  file->path(), entry->name, dtype));
    case WantedTensor::Holds::kFp8:
      if (entry->dtype == at::kFloat8_e4m3fn) return;
      throw UserError(fmt::format(
          "{}: {} holds {} numbers, and there is a {}{}, which is of numbers in fp8 (F8_E4M3).",
          file->path(), entry->name, dtype, entry->name, kFp8Scales));
    case WantedTensor::Holds::kNumbers:
      if (has_plain_numbers(entry->dtype)) return;
      throw UserError(fmt::format(
          "{}: {} holds {} numbers; quantized checkpoints cannot be trained. Use the original one.",
          file->path(), entry->name, dtype));
  }
}

}  // namespace

std::vector<StoredParameter> find_parameters(const std::string& folder, const ModelConfig& config) {
  std::vector<Place> copied;
  const auto places = places_of_tensors(folder, config, copied);
  require_layers(folder, config, places);
  const ModelSpec& spec = config.spec;
  std::vector<StoredParameter> listing;
  std::set<std::string> unexpected;
  for (const auto& [name, place] : places) {
    if (!is_redundant_tensor(spec, name)) unexpected.insert(name);
  }
  Headers headers;
  std::vector<std::string> missing;
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    const Part part = part_of(parameter, places);
    const WantedTensors of_parameter = wanted_tensors(parameter, part, config, places);
    StoredParameter stored{.spec = parameter,
                           .numbers = {},
                           .begin = part.begin,
                           .scales = {},
                           .stored = of_parameter.stored};
    for (const WantedTensor& wanted : of_parameter.tensors) {
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
      require_shape_and_dtype(wanted, found);
      (stored.numbers.entry == nullptr ? stored.numbers : stored.scales) = found;
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
  if (is_composite(config) && copied.empty()) {
    throw UserError(fmt::format(
        "{}: config.json says {}, and the weights have nothing of its part for pictures "
        "({}). Where that was taken out, make text_config all of config.json.",
        folder, config.architecture, describe_copied_tensors(config)));
  }
  return listing;
}

bool has_layers_for_further_tokens(const std::string& folder, const ModelConfig& config) {
  std::vector<Place> copied;
  const auto places = places_of_tensors(folder, config, copied);
  return std::ranges::any_of(
      places, [&](const auto& place) { return predicts_further_tokens(config.spec, place.first); });
}

std::vector<StoredTensor> find_copied_tensors(const std::string& folder,
                                              const ModelConfig& config) {
  std::vector<Place> copied;
  places_of_tensors(folder, config, copied);
  Headers headers;
  std::vector<StoredTensor> tensors;
  for (const Place& place : copied) {
    tensors.push_back(headers.find(place));
    if (tensors.back().entry == nullptr) {
      throw UserError(
          fmt::format("{} has no {}, which the index of the weights names. Download it again.",
                      place.file, place.name));
    }
  }
  return tensors;
}

}  // namespace longspan
