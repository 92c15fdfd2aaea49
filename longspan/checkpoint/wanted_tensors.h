// The tensors of a folder that a parameter needs, by the parameter's spec and config.json.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/checkpoint/stored_tensors.h"
#include "longspan/models/model_config.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Whether the folder has a tensor of this name.
using HasTensor = std::function<bool(const std::string& name)>;

/// A parameter's place in a tensor.
struct TensorPart {
  std::string name;            // of the tensor, in the language model
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin;               // the parameter's first number
};

/// A tensor from which a parameter is read: its name in the language model, its shape and its
/// contents.
struct WantedTensor {
  enum class Holds { kNumbers, kBytesOfMxfp4, kFp8, kWordsOfCodes };
  std::string name;
  std::vector<int64_t> shape;
  Holds holds = Holds::kNumbers;
  StoredTensor StoredParameter::* place = &StoredParameter::numbers;
};

/// One tensor, or the tensors of quantized numbers: the numbers and their scales.
struct WantedTensors {
  std::vector<WantedTensor> tensors;
  StoredNumbers stored;
};

/// Endings of the names of the tensors that a linear layer in 4 bits has in place of its matrix.
inline constexpr std::string_view kQweightEnding = ".qweight", kZerosEnding = ".qzeros",
                                  kQscalesEnding = ".scales", kGroupsEnding = ".g_idx";

/// Returns the parameter's place by its spec.
TensorPart part_of(const ParameterSpec& parameter, bool tied, const HasTensor& has);

/// Returns the tensors that must hold a parameter: its numbers, or the quantized form that
/// config.json names. Throws UserError for a matrix that the form cannot hold.
WantedTensors wanted_tensors(const ParameterSpec& spec, const TensorPart& part,
                             const ModelConfig& config, const HasTensor& has);

/// Whether the tensor holds the matrices of which the parameter is a part as transposes. Where both
/// shapes are the same, it holds them as they are, as in transformers.
bool holds_transposes(const ParameterSpec& parameter, const StoredTensor& found);

/// Throws UserError unless the tensor has the shape and a dtype of its contents.
void require_shape_and_dtype(const WantedTensor& wanted, const StoredTensor& found);

}  // namespace longspan
