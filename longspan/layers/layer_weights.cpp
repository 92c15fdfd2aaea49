#include "longspan/layers/layer_weights.h"

#include <c10/util/Exception.h>

#include "longspan/spec/layer_parameters.h"

namespace longspan {

at::Tensor LayerWeights::find(const std::string& name) const {
  const auto found = parameters_.find(layer_parameter_name(layer_, name));
  return found == parameters_.end() ? at::Tensor() : found->second;
}

at::Tensor LayerWeights::required(const std::string& name) const {
  at::Tensor tensor = find(name);
  TORCH_CHECK(tensor.defined(), "layer ", layer_, " has no parameter ", name);
  return tensor;
}

Linear LayerWeights::linear(const std::string& name) const {
  return {required(name + ".weight"), find(name + ".bias"), find(name + ".lora_A.weight"),
          find(name + ".lora_B.weight"), lora_scale_};
}

at::Tensor LayerWeights::norm(const std::string& name) const { return required(name + ".weight"); }

}  // namespace longspan
