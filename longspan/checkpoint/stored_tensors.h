// Parameters as they lie in the files of a model: whole tensors, parts of one, or numbers in MXFP4
// or in fp8.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/models/model_config.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// A tensor of a file. The entry is the file's.
struct StoredTensor {
  std::shared_ptr<const SafetensorsFile> file;
  const SafetensorsEntry* entry = nullptr;
};

/// What holds a parameter.
struct StoredParameter {
  ParameterSpec spec;
  StoredTensor numbers;  ///< that it is or is a part of; or the blocks of MXFP4, or fp8
  int64_t begin = 0;     ///< its first number there; of MXFP4 not read
  StoredTensor scales;   ///< of MXFP4 or fp8; empty otherwise
  StoredNumbers stored;  ///< what these two are

  /// As a tensor of its own on the CPU. Throws UserError as SafetensorsFile::read does.
  at::Tensor read(at::ScalarType dtype) const;
};

/// The first number of a parameter in the tensor that holds it.
int64_t begin_in_stored(const ParameterSpec& spec);
/// Are the rows of the matrix columns there?
bool is_turned(const ParameterSpec& spec);
/// As the rows of the stored tensor that the parameter is: those of stored_shape().
at::Tensor as_stored(const ParameterSpec& spec, const at::Tensor& parameter);

}  // namespace longspan
