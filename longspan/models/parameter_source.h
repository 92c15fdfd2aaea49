// A parameter that is yet to be made.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "longspan/spec/parameter_spec.h"

namespace longspan {

/// Made one at a time, so that nobody need hold all of them.
struct ParameterSource {
  ParameterSpec spec;
  at::ScalarType dtype;
  bool trained = false;
  /// A tensor of that shape and dtype on the CPU, nobody else's.
  std::function<at::Tensor()> make;
};

}  // namespace longspan
