// A gated MLP, as data. No torch. What it computes is in layers/gated_mlp.h.
#pragma once

#include <cstdint>

#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"

namespace longspan {

enum class GateActivation {
  kSilu,
  kGeluTanh,  ///< gelu in its form with tanh (arXiv 1606.08415): gelu_pytorch_tanh
};

/// A feed-forward: down(activation(gate x) * up x), of each token by itself.
struct GatedMlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;  ///< of all three
  GateActivation activation = GateActivation::kSilu;
  bool stored_as_one = false;  ///< gate and up are one tensor in the files: gate_up_proj

  bool operator==(const GatedMlpSpec&) const = default;
};

void list_parameters(const GatedMlpSpec& mlp, LayerParameters& list);
FeedForwardCost cost_of(const GatedMlpSpec& mlp, int64_t hidden_size);

}  // namespace longspan
