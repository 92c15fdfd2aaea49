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
#include "longspan/checkpoint/fp8_blocks.h"
#include "longspan/checkpoint/mxfp4.h"
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

/// A parameter's place in a tensor.
struct Part {
  std::string name;            // of the tensor, in the language model
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin;               // the parameter's first number
};

/// A tensor from which a parameter is read: its name in the language model, its shape and its
/// contents.
struct WantedTensor {
  enum class Holds { kNumbers, kBytesOfMxfp4, kFp8 };
  std::string name;
  std::vector<int64_t> shape;
  Holds holds = Holds::kNumbers;
};

/// One tensor, or the tensors of quantized numbers: the numbers and their scales.
struct WantedTensors {
  std::vector<WantedTensor> tensors;
  StoredNumbers stored;
};

/// Returns the parameter's place by its spec.
Part part_of(const ParameterSpec& parameter, bool tied,
             const std::map<std::string, Place>& places) {
  if (const auto& stack = parameter.stored_in_stack;
      stack && places.contains(stack->tensor) && !places.contains(parameter.stored_as)) {
    return {stack->tensor, stack->shape, stack->begin};
  }
  // Where the head is tied, files may hold the embedding by either name.
  if (tied && parameter.stored_as == kEmbeddingName && !places.contains(kEmbeddingName) &&
      places.contains(kHeadName)) {
    return {kHeadName, stored_shape(parameter), begin_in_stored(parameter)};
  }
  return {parameter.stored_as, stored_shape(parameter), begin_in_stored(parameter)};
}

/// Returns MXFP4's blocks and scales, where the files have one of them and not the matrix.
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

/// Returns a matrix in fp8 and its scales, where the files have scales.
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

/// Returns the tensors that may hold a parameter: its numbers, or the quantized form that
/// config.json names.
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

/// Whether the tensor holds the matrices of which the parameter is a part as transposes. Where both
/// shapes are the same, it holds them as they are, as in transformers.
bool holds_transposes(const ParameterSpec& parameter, const StoredTensor& found) {
  if (!parameter.stored_part || parameter.stored_part->num_matrices == 0) return false;
  std::vector<int64_t> shape = stored_shape(parameter);
  if (found.entry->shape == shape) return false;
  std::swap(shape.at(1), shape.at(2));
  return found.entry->shape == shape;
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
      throw UserError(fmt::format("{}: {} holds {} numbers, but MXFP4 is stored as bytes (U8).",
                                  file->path(), entry->name, dtype));
    case WantedTensor::Holds::kFp8:
      if (entry->dtype == at::kFloat8_e4m3fn) return;
      throw UserError(fmt::format(
          "{}: {} holds {} numbers, but its scales {}{} are those of an fp8 tensor (F8_E4M3).",
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
  FolderTensors tensors = tensors_of(folder, config);
  auto& [headers, places, copied] = tensors;
  require_layers(folder, config, places);
  const ModelSpec& spec = config.spec;
  std::vector<StoredParameter> listing;
  std::set<std::string> unexpected;
  for (const auto& [name, place] : places) {
    if (!why_left_out(spec, name)) unexpected.insert(name);
  }
  std::vector<std::string> missing;
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    const Part part = part_of(parameter, spec.tied_head, places);
    const WantedTensors of_parameter = wanted_tensors(parameter, part, config, places);
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
  const std::map<std::string, Place> places = tensors_of(folder, config).places;
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
