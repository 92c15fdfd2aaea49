// A parameter by name: with its tensor, or with its shape before the tensor exists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

struct NamedTensor {
  std::string name;  // Hugging Face name, e.g. model.layers.0.self_attn.q_proj.weight
  at::Tensor tensor;
};

struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
};

}  // namespace longspan
