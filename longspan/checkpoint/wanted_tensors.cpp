#include "longspan/checkpoint/wanted_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/fp8_blocks.h"
#include "longspan/checkpoint/grouped_codes.h"
#include "longspan/checkpoint/mxfp4.h"
#include "longspan/models/grouped_format.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {

TensorPart part_of(const ParameterSpec& parameter, bool tied, const HasTensor& has) {
  if (const auto& stack = parameter.stored_in_stack;
      stack && has(stack->tensor) && !has(parameter.stored_as)) {
    return {stack->tensor, stack->shape, stack->begin};
  }
  // Where the head is tied, files may hold the embedding by either name.
  if (tied && parameter.stored_as == kEmbeddingName && !has(kEmbeddingName) && has(kHeadName)) {
    return {kHeadName, stored_shape(parameter), begin_in_stored(parameter)};
  }
  return {parameter.stored_as, stored_shape(parameter), begin_in_stored(parameter)};
}

namespace {

/// Returns MXFP4's blocks and scales, where the files have one of them and not the matrix.
std::optional<WantedTensors> wanted_of_mxfp4(const ParameterSpec& spec, const TensorPart& part,
                                             const ModelConfig& config, const HasTensor& has) {
  const std::string blocks = part.name + "_blocks", scales = part.name + "_scales";
  const bool may_be = spec.stored_part && spec.stored_part->stacked && spec.shape.size() == 2;
  if (!may_be || has(part.name) || !(has(blocks) || has(scales))) return std::nullopt;
  using enum WantedTensor::Holds;
  const int64_t count = spec.stored_part->num_rows;
  return WantedTensors{
      {{blocks, mxfp4_blocks_shape(count, spec.shape[0], spec.shape[1]), kBytesOfMxfp4},
       {scales, mxfp4_scales_shape(count, spec.shape[0], spec.shape[1]), kBytesOfMxfp4,
        &StoredParameter::scales}},
      config.stored};
}

/// Returns a matrix in fp8 and its scales, where the files have scales.
std::optional<WantedTensors> wanted_of_fp8(const ParameterSpec& spec, const TensorPart& part,
                                           const ModelConfig& config, const HasTensor& has) {
  using enum WantedTensor::Holds;
  const std::string scales = part.name + kFp8Scales;
  if (spec.shape.size() != 2 || part.shape != spec.shape || !has(scales)) return std::nullopt;
  const StoredNumbers& stored = config.stored;
  return WantedTensors{
      {{part.name, part.shape, kFp8},
       {scales,
        fp8_scales_shape(spec.shape[0], spec.shape[1], stored.block_rows, stored.block_columns),
        kNumbers, &StoredParameter::scales}},
      stored};
}

/// Returns the codes of a matrix, with scales and zeros, where config.json says that the folder has
/// the matrix in 4 bits.
std::optional<WantedTensors> wanted_of_codes(const ParameterSpec& spec, const TensorPart& part,
                                             const ModelConfig& config) {
  using enum WantedTensor::Holds;
  const StoredNumbers& stored = config.stored;
  if (!stored.packed.holds(spec)) return std::nullopt;
  const int64_t num_rows = part.shape.at(0), num_columns = part.shape.at(1);
  if (num_rows % kCodesOfWord != 0 || num_columns % kCodesOfWord != 0) {
    throw UserError(fmt::format(
        "{} is {} x {}, and {} holds {} numbers of 4 bits in a word. Give the original model.",
        part.name, num_rows, num_columns, stored.grouped->name, kCodesOfWord));
  }
  const std::string linear = part.name.substr(0, part.name.size() - kWeightEnding.size());
  const auto name = [&](std::string_view ending) { return fmt::format("{}{}", linear, ending); };
  GroupedShapes shapes = grouped_shapes(stored, num_rows, num_columns);
  WantedTensors wanted{{{name(kQweightEnding), shapes.codes, kWordsOfCodes},
                        {name(kZerosEnding), shapes.zeros, kWordsOfCodes, &StoredParameter::zeros},
                        {name(kQscalesEnding), shapes.scales, kNumbers, &StoredParameter::scales}},
                       stored};
  if (stored.grouped->has_group_indices) {
    wanted.tensors.push_back(
        {name(kGroupsEnding), shapes.groups, kWordsOfCodes, &StoredParameter::groups});
  }
  return wanted;
}

}  // namespace

WantedTensors wanted_tensors(const ParameterSpec& spec, const TensorPart& part,
                             const ModelConfig& config, const HasTensor& has) {
  std::optional<WantedTensors> quantized;
  switch (config.stored.format) {
    case StoredNumbers::Format::kPlain:
      break;
    case StoredNumbers::Format::kMxfp4:
      quantized = wanted_of_mxfp4(spec, part, config, has);
      break;
    case StoredNumbers::Format::kFp8:
      quantized = wanted_of_fp8(spec, part, config, has);
      break;
    case StoredNumbers::Format::kGrouped:
      quantized = wanted_of_codes(spec, part, config);
      break;
  }
  return quantized.value_or(WantedTensors{{{part.name, part.shape}}, {}});
}

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
    case WantedTensor::Holds::kWordsOfCodes:
      if (entry->dtype == at::kInt) return;
      throw UserError(fmt::format("{}: {} holds {} numbers, but codes are stored as words (I32).",
                                  file->path(), entry->name, dtype));
    case WantedTensor::Holds::kNumbers:
      if (has_plain_numbers(entry->dtype)) return;
      throw UserError(fmt::format(
          "{}: {} holds {} numbers; quantized checkpoints cannot be trained. Use the original one.",
          file->path(), entry->name, dtype));
  }
}

}  // namespace longspan
