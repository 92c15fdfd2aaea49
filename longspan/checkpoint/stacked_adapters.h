// Adapters of linear layers that a model's files stack in one tensor (gpt-oss's experts), as PEFT
// has them: one adapter of the whole tensor, which its target_parameters name. E: linear layers in
// the tensor, R: the adapter's rank, I: inputs, O: outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct StackedAdapter {
  std::string target;                ///< as target_parameters names it, without its layer
  std::string module;                ///< as lora_target names it
  std::string a_name, b_name;        ///< of PEFT's matrices [E R, I] and [O, R E]
  std::vector<ParameterSpec> parts;  ///< the weights of the E linear layers
};

/// Those of a model whose adapters are of these modules, in the order of its parameters. The names
/// depend on all of them: PEFT puts a wrapper around a module for each parameter of it.
std::vector<StackedAdapter> stacked_adapters(const ModelSpec& model,
                                             const std::set<std::string>& modules);

/// PEFT's matrices of the parts', A [R, I] and B [O, R] of one after the other.
std::vector<NamedTensor> joined(const StackedAdapter& stack, const std::vector<at::Tensor>& parts);
/// The other way round, [E R, I] and [O, R E] -> A and B of each part.
std::vector<NamedTensor> taken_apart(const StackedAdapter& stack, const at::Tensor& a_EI,
                                     const at::Tensor& b_OE);

}  // namespace longspan
