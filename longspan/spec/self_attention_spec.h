// Softmax attention with what a layer does around it, as data. No torch. What it computes is in
// layers/self_attention.h.
#pragma once

#include <optional>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// A token mixer: o(attend(rotated q(x), rotated k(x), v(x))). With a gate it is o(sigmoid(gate(x))
/// * attend(...)).
struct SelfAttentionSpec {
  AttentionSpec attention;
  std::optional<RotarySpec> rotary;  ///< how queries and keys are rotated; none: not at all
  bool qk_norm = false;              ///< an RMSNorm over each head of queries and of keys
  bool qkv_bias = false, output_bias = false;
  bool stored_as_one = false;  ///< the projections before it are one tensor in the files: qkv_proj
  /// The attention's output is multiplied by sigmoid(gate), number by number. The query projection
  /// makes both: key_dim numbers of a query and then value_dim of its gate, head after head.
  bool output_gate = false;

  bool operator==(const SelfAttentionSpec&) const = default;
};

void list_parameters(const SelfAttentionSpec& mixer, LayerParameters& list);
/// The softmax attention in it: what strategies, plan and traffic go by. Null in a mixer that has
/// none.
inline const AttentionSpec* attention_in(const SelfAttentionSpec& mixer) {
  return &mixer.attention;
}
/// Is what is mixed what its softmax attention gives, as it is?
inline bool mixes_by_attention_alone(const SelfAttentionSpec& mixer) { return !mixer.output_gate; }
/// The rotation in it.
inline std::optional<RotaryKind> rotary_in(const SelfAttentionSpec& mixer) {
  if (!mixer.rotary) return std::nullopt;
  return RotaryKind{*mixer.rotary, mixer.rotary->dim.value_or(mixer.attention.key_dim)};
}
/// The recurrence in it; none: it does not go over the tokens of a row one behind the other.
inline std::optional<RecurrenceSpec> recurrence_in(const SelfAttentionSpec& /*mixer*/) {
  return std::nullopt;
}
TokenMixerCost cost_of(const SelfAttentionSpec& mixer, int64_t hidden_size);

}  // namespace longspan
