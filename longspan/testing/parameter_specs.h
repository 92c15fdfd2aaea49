// Specs for parameters that a test makes up.
#pragma once

#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/model_spec.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan::testing {

/// Returns names and shapes of all parameters of a model, in Hugging Face's order.
inline std::vector<ParameterShape> parameter_shapes(const ModelSpec& model) {
  std::vector<ParameterShape> shapes;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    shapes.push_back({parameter.name, parameter.shape});
  }
  return shapes;
}

/// Returns specs as if each parameter were the matrix of a linear layer, whatever its name.
inline ParameterTable projections(const std::vector<NamedTensor>& parameters) {
  ParameterTable specs;
  for (const auto& [name, tensor] : parameters) {
    specs.add(parameter_spec(name, tensor.sizes().vec(), ParameterRole::kProjection, kAlwaysThere));
  }
  return specs;
}

}  // namespace longspan::testing
