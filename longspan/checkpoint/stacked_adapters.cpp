#include "longspan/checkpoint/stacked_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "longspan/spec/layer_parameters.h"

namespace longspan {
namespace {

/// The module of a parameter of this name.
std::string parent_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

}  // namespace

std::vector<StackedAdapter> stacked_adapters(const ModelSpec& model,
                                             const std::set<std::string>& modules) {
  std::vector<StackedAdapter> stacks;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    if (!parameter.stored_part || !parameter.stored_part->stacked) continue;
    if (!modules.contains(parameter.lora_target)) continue;
    if (begins_stored(parameter)) {
      const std::string layer = layer_parameter_name(*parameter.layer, "");
      stacks.push_back(
          {parameter.stored_as.substr(layer.size()), parameter.lora_target, "", "", {}});
    }
    stacks.back().parts.push_back(parameter);
  }
  // PEFT wraps the first parameter of a module first, so that wrapper lies deepest.
  for (size_t i = 0; i < stacks.size(); ++i) {
    const std::string module = parent_of(stacks[i].parts.front().stored_as);
    std::string linear = module;  // PEFT's wrapper with the adapter
    for (size_t j = i + 1; j < stacks.size(); ++j) {
      if (parent_of(stacks[j].parts.front().stored_as) == module) linear += ".base_layer";
    }
    stacks[i].a_name = lora_a_name(linear);
    stacks[i].b_name = lora_b_name(linear);
  }
  return stacks;
}

std::vector<NamedTensor> joined(const StackedAdapter& stack, const std::vector<at::Tensor>& parts) {
  TORCH_CHECK(parts.size() == 2 * stack.parts.size(), "an adapter has two matrices");
  std::vector<at::Tensor> a, b;
  for (size_t i = 0; i < parts.size(); i += 2) {
    a.push_back(parts[i]);
    b.push_back(parts[i + 1]);
  }
  return {{stack.a_name, at::cat(a)}, {stack.b_name, at::stack(b, 2).flatten(1)}};
}

std::vector<NamedTensor> taken_apart(const StackedAdapter& stack, const at::Tensor& a_EI,
                                     const at::Tensor& b_OE) {
  const auto E = static_cast<int64_t>(stack.parts.size());
  const at::Tensor a_ERI = a_EI.view({E, -1, a_EI.size(1)}),
                   b_ORE = b_OE.view({b_OE.size(0), -1, E});
  std::vector<NamedTensor> parts;
  for (int64_t i = 0; i < E; ++i) {
    parts.push_back({lora_a_name(stack.parts[i]), a_ERI[i].clone()});
    parts.push_back({lora_b_name(stack.parts[i]), b_ORE.select(2, i).contiguous()});
  }
  return parts;
}

}  // namespace longspan
