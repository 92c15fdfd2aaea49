// Parameters as a model's files hold them: whole tensors, parts of tensors, MXFP4 or fp8.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/models/model_config.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// A tensor of a file. The entry belongs to the file.
struct StoredTensor {
  std::shared_ptr<const SafetensorsFile> file;
  const SafetensorsEntry* entry = nullptr;
};

/// The tensors that hold a parameter.
struct StoredParameter {
  ParameterSpec spec;
  StoredTensor numbers;  ///< the tensor, or the blocks of MXFP4, or the fp8 numbers
  int64_t begin = 0;     ///< the parameter's first number in `numbers`; unused for MXFP4
  StoredTensor scales;   ///< of MXFP4 or fp8; else empty
  StoredNumbers stored;  ///< format of `numbers` and `scales`
  bool turned = false;   ///< the file holds the transpose of each matrix (StoredPart::num_matrices)

  /// Reads the parameter to a tensor of its own on the CPU. Throws UserError as
  /// SafetensorsFile::read does.
  at::Tensor read(at::ScalarType dtype) const;
};

/// The index of a parameter's first number in the tensor that holds it.
int64_t begin_in_stored(const ParameterSpec& spec);
/// Whether the stored matrix is the transpose of the parameter.
bool is_turned(const ParameterSpec& spec);
/// Returns the parameter as rows of the stored tensor (stored_shape()).
at::Tensor as_stored(const ParameterSpec& spec, const at::Tensor& parameter);

}  // namespace longspan
