// Adapters of linear layers that a model's files stack in one tensor (gpt-oss's experts). In PEFT's
// layout, the whole tensor has one adapter, and target_parameters names the tensor. E: linear
// layers in the tensor, R: the adapter's rank, I: inputs, O: outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct StackedAdapter {
  std::string target;                ///< the tensor's name in target_parameters, without the layer
  std::string module;                ///< the tensor's name as a lora_target
  std::string a_name, b_name;        ///< names of PEFT's matrices [E R, I] and [O, R E]
  std::vector<ParameterSpec> parts;  ///< the weights of the E linear layers
};

/// Returns the stacked adapters of a model with adapters on these modules, in the order of its
/// parameters. The name of an adapter depends on the other stacked adapters of its module: PEFT
/// wraps a module once for each of its parameters, and each wrapper adds to the names.
std::vector<StackedAdapter> stacked_adapters(const ModelSpec& model,
                                             const std::set<std::string>& modules);

/// Joins the matrices of the parts into PEFT's matrices. `parts`: A [R, I] and B [O, R] of each
/// part in turn.
std::vector<NamedTensor> joined(const StackedAdapter& stack, const std::vector<at::Tensor>& parts);
/// Splits PEFT's matrices [E R, I] and [O, R E] into A and B of each part.
std::vector<NamedTensor> taken_apart(const StackedAdapter& stack, const at::Tensor& a_EI,
                                     const at::Tensor& b_OE);

}  // namespace longspan
