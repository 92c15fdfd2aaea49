// Makes a parameter when it is wanted: reads it from a file, or draws it at random.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// In which dtype a model of `dtype` holds the parameter, and its files do: buffers are in fp32 at
/// least.
inline at::ScalarType stored_dtype(const ParameterSpec& parameter, at::ScalarType dtype) {
  return is_buffer(parameter.role) && c10::elementSize(dtype) < 4 ? at::kFloat : dtype;
}

/// Sources are asked one after the other, so that no process holds all parameters.
struct ParameterSource {
  ParameterSpec spec;
  at::ScalarType dtype;
  bool trained = false;
  /// Returns a new tensor of that shape and dtype on the CPU.
  std::function<at::Tensor()> make;
};

}  // namespace longspan
