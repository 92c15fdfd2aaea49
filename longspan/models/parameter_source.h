// A parameter that is yet to be made.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace longspan {

/// Made one at a time, so that nobody need hold all of them.
struct ParameterSource {
  std::string name;  // Hugging Face name
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  bool trained = false;
  /// A tensor of that shape and dtype on the CPU, nobody else's.
  std::function<at::Tensor()> make;
};

}  // namespace longspan
