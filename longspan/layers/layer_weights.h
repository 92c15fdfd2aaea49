// The parameters of one layer of the decoder, by the part of their names after the layer's number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longspan/kernels/linear.h"
#include "longspan/layers/expert_exchange.h"
#include "longspan/spec/parameter_spec.h"

namespace longspan {

using TensorsByName = std::map<std::string, at::Tensor, std::less<>>;

class LayerWeights {
 public:
  /// `parameters`: the parameters of the whole model, except experts on other processes; must
  /// outlive this object. `specs`: the specs of the layer's parameters. `exchange`: null if no
  /// experts are on other processes.
  LayerWeights(const TensorsByName& parameters, const std::vector<ParameterSpec>& specs,
               int64_t layer, double lora_scale, ExpertExchange* exchange)
      : parameters_(parameters),
        specs_(specs),
        layer_(layer),
        lora_scale_(lora_scale),
        exchange_(exchange) {}

  /// Returns a linear layer, for example self_attn.q_proj: weight, and bias and adapter, if any.
  Linear linear(const std::string& name) const;
  /// Returns the matrix or the buffer of this full name.
  at::Tensor tensor(const std::string& name) const { return required(name); }
  int64_t layer() const { return layer_; }
  ExpertExchange* expert_exchange() const { return exchange_; }
  /// Returns the weight of a norm, for example self_attn.q_norm.
  at::Tensor norm(const std::string& name) const;
  /// Returns a parameter whose name has no .weight at the end, for example linear_attn.A_log.
  at::Tensor parameter(const std::string& name) const { return required(name); }

 private:
  /// Returns the tensor of this full name; undefined where it is missing.
  at::Tensor find_whole(const std::string& name) const;
  at::Tensor find(const std::string& name) const;
  at::Tensor required(const std::string& name) const;

  const TensorsByName& parameters_;
  ParameterTable specs_;
  int64_t layer_;
  double lora_scale_;
  ExpertExchange* exchange_;
};

}  // namespace longspan
