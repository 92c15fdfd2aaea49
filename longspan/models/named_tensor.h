// A tensor and its name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace longspan {

struct NamedTensor {
  std::string name;  // Hugging Face name, e.g. model.layers.0.self_attn.q_proj.weight
  at::Tensor tensor;
};

}  // namespace longspan
