// Parameters as a model's files hold them: whole tensors, parts of tensors, MXFP4, fp8, or codes
// with scales and zeros.
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
  StoredTensor numbers;  ///< the tensor, or the blocks of MXFP4, or the fp8 numbers, or codes
  int64_t begin = 0;     ///< the parameter's first number in its tensor; unused for MXFP4
  StoredTensor scales;   ///< of MXFP4, fp8 or codes; else empty
  StoredNumbers stored;  ///< format of `numbers` and `scales`
  bool turned = false;   ///< the file holds the transpose of each matrix (StoredPart::num_matrices)
  StoredTensor zeros = {};   ///< of codes; else empty
  StoredTensor groups = {};  ///< of the columns of codes, if the format has them

  /// Reads the parameter to a tensor of its own on the CPU. Throws UserError as
  /// SafetensorsFile::read does.
  at::Tensor read(at::ScalarType dtype) const;
  /// Whether the file holds the parameter row by row, so that read_run() can read some of the
  /// rows. Otherwise a part of the parameter takes a reading of the whole.
  bool holds_runs() const;
  /// Reads the numbers [begin, end) of the parameter, as read().view({-1}) has them. Throws as
  /// read().
  at::Tensor read_run(int64_t begin, int64_t end, at::ScalarType dtype) const;
  /// Returns the packed bytes (GroupedLayout) of the whole tensor that holds the parameter, for
  /// StoredNumbers::Format::kGrouped. Throws UserError also where groups or scales are no groups or
  /// scales.
  at::Tensor read_packed() const;
};

/// The index of a parameter's first number in the tensor that holds it.
int64_t begin_in_stored(const ParameterSpec& spec);
/// Whether the stored matrix is the transpose of the parameter.
bool is_turned(const ParameterSpec& spec);
/// Returns the parameter as rows of the stored tensor (stored_shape()).
at::Tensor as_stored(const ParameterSpec& spec, const at::Tensor& parameter);

}  // namespace longspan
