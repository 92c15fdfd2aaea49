// The parameters of one layer of the decoder, by what follows the layer's number in their names.
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
  /// `parameters`, those of the whole model but for experts that are elsewhere (`exchange`; null:
  /// none are), must outlive it. `specs`: those of the layer.
  LayerWeights(const TensorsByName& parameters, const std::vector<ParameterSpec>& specs,
               int64_t layer, double lora_scale, ExpertExchange* exchange)
      : parameters_(parameters),
        specs_(specs),
        layer_(layer),
        lora_scale_(lora_scale),
        exchange_(exchange) {}

  /// Of the linear layer self_attn.q_proj, say: weight, and where they are there bias and adapter.
  Linear linear(const std::string& name) const;
  /// The matrix or the buffer of this whole name.
  at::Tensor tensor(const std::string& name) const { return required(name); }
  int64_t layer() const { return layer_; }
  ExpertExchange* expert_exchange() const { return exchange_; }
  /// The weight of the norm self_attn.q_norm, say.
  at::Tensor norm(const std::string& name) const;
  /// What is called linear_attn.A_log, say, and has no .weight behind its name.
  at::Tensor parameter(const std::string& name) const { return required(name); }

 private:
  /// The one of this whole name; undefined where there is none.
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
