#include "longspan/layers/layer_weights.h"

#include <c10/util/Exception.h>

#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/packed_format.h"

namespace longspan {

at::Tensor LayerWeights::find_whole(const std::string& name) const {
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? at::Tensor() : found->second;
}

at::Tensor LayerWeights::find(const std::string& name) const {
  return find_whole(layer_parameter_name(layer_, name));
}

at::Tensor LayerWeights::required(const std::string& name) const {
  at::Tensor tensor = find(name);
  TORCH_CHECK(tensor.defined(), "layer ", layer_, " has no parameter ", name);
  return tensor;
}

Linear LayerWeights::linear(const std::string& name) const {
  const ParameterSpec& weight = specs_.of(layer_parameter_name(layer_, name + ".weight"));
  const auto part = [&](std::string_view ending) {
    return find_whole(weight.name + std::string(ending));
  };
  return {.weight = required(name + ".weight"),
          .bias = find(name + ".bias"),
          .lora_a = find_whole(lora_a_name(weight)),
          .lora_b = find_whole(lora_b_name(weight)),
          .lora_scale = lora_scale_,
          .lora_b_begin = lora_b_begin(weight),
          .magnitude = find_whole(lora_magnitude_name(weight)),
          .eight_bits = {part(kCodesEnding), part(kScalesEnding)}};
}

at::Tensor LayerWeights::norm(const std::string& name) const { return required(name + ".weight"); }

}  // namespace longspan
