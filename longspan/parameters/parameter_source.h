// Makes a parameter on demand: reads it from a file, or draws it at random.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Returns the dtype of the parameter in a model of `dtype`, and in its files: buffers are at least
/// fp32.
inline at::ScalarType stored_dtype(const ParameterSpec& parameter, at::ScalarType dtype) {
  return is_buffer(parameter.role) && c10::elementSize(dtype) < 4 ? at::kFloat : dtype;
}

/// Sources are called one after the other, so that no process holds all parameters.
struct ParameterSource {
  ParameterSpec spec;
  at::ScalarType dtype;
  bool trained = false;
  /// Returns a new tensor of the spec's shape and of `dtype`, on the CPU.
  std::function<at::Tensor()> make;
};

}  // namespace longspan
