// A gated MLP, as data. No torch. What it computes is in layers/gated_mlp.h.
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
/// gelu(gate) * up (GeGLU, arXiv 2002.05202), with gelu in its form with tanh (arXiv 1606.08415):
/// gelu_pytorch_tanh.
struct Geglu {
  bool operator==(const Geglu&) const = default;
};
/// g sigmoid(slope g) (1 + u), where g = min(gate, limit) and u is up, brought into [-limit, limit]
/// (gpt-oss, arXiv 2508.10925).
struct ClampedSwiglu {
  double slope = 1.702, limit = 7.0;

  bool operator==(const ClampedSwiglu&) const = default;
};
/// What a gated MLP makes of gate x and up x, number by number: the kinds that there are.
using GateActivation = std::variant<Swiglu, Geglu, ClampedSwiglu>;

/// A feed-forward: down(activation(gate x, up x)), of each token by itself.
struct GatedMlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;  ///< of all three
  GateActivation activation = Swiglu{};
  bool stored_as_one = false;  ///< gate and up are one tensor in the files: gate_up_proj

  bool operator==(const GatedMlpSpec&) const = default;
};

void list_parameters(const GatedMlpSpec& mlp, LayerParameters& list);
FeedForwardCost cost_of(const GatedMlpSpec& mlp, int64_t hidden_size);
/// Its sizes, in words of config.json, for messages.
std::string sizes_in(const GatedMlpSpec& mlp);
/// The mixture of experts in it; null: every token goes through all of it.
inline const MixtureOfExpertsSpec* experts_in(const GatedMlpSpec& /*mlp*/) { return nullptr; }

}  // namespace longspan
