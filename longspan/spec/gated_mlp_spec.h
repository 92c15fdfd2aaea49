// A gated MLP, as data. layers/gated_mlp.h has the computation. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"

namespace longspan {

struct MixtureOfExpertsSpec;

/// silu(gate) * up (SwiGLU, arXiv 2002.05202).
struct Swiglu {
  bool operator==(const Swiglu&) const = default;
};
/// gelu(gate) * up (GeGLU, arXiv 2002.05202) with the tanh form of gelu (arXiv 1606.08415):
/// gelu_pytorch_tanh.
struct Geglu {
  bool operator==(const Geglu&) const = default;
};
/// g sigmoid(slope g) (1 + u) with g = min(gate, limit) and u = up clamped to [-limit, limit]
/// (gpt-oss, arXiv 2508.10925).
struct ClampedSwiglu {
  double slope = 1.702, limit = 7.0;

  bool operator==(const ClampedSwiglu&) const = default;
};
/// The elementwise function of gate x and up x.
using GateActivation = std::variant<Swiglu, Geglu, ClampedSwiglu>;

/// A feed-forward: down(activation(gate x, up x)), for each token separately.
struct GatedMlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;  ///< in all three linear layers
  GateActivation activation = Swiglu{};
  bool stored_as_one = false;  ///< gate and up are one tensor, gate_up_proj, in the files

  bool operator==(const GatedMlpSpec&) const = default;
};

void list_parameters(const GatedMlpSpec& mlp, LayerParameters& list);
FeedForwardCost cost_of(const GatedMlpSpec& mlp, int64_t hidden_size);
/// Returns the MLP's sizes, under the names of config.json, for messages.
std::string sizes_in(const GatedMlpSpec& mlp);
/// Returns the mixture of experts of a feed-forward; null for a gated MLP.
inline const MixtureOfExpertsSpec* experts_in(const GatedMlpSpec& /*mlp*/) { return nullptr; }

}  // namespace longspan
