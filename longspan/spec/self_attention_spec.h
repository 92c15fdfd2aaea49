// Self-attention: softmax attention with the layer's other steps, as data. layers/self_attention.h
// has the computation. No torch.
#pragma once

#include <optional>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// A token mixer: o(attend(rotated q(x), rotated k(x), v(x))), or with a gate o(sigmoid(gate(x)) *
/// attend(...)).
struct SelfAttentionSpec {
  AttentionSpec attention;
  std::optional<RotarySpec> rotary;  ///< rotation of queries and keys; none: no rotation
  bool qk_norm = false;              ///< an RMSNorm on each head of queries and keys
  bool qkv_bias = false, output_bias = false;
  bool stored_as_one = false;  ///< q, k and v projections are one tensor, qkv_proj, in the files
  /// Multiplies the attention's output elementwise by sigmoid(gate). The query projection computes
  /// queries and gates, head by head: key_dim elements of the query, then value_dim elements of the
  /// gate.
  bool output_gate = false;

  bool operator==(const SelfAttentionSpec&) const = default;
};

void list_parameters(const SelfAttentionSpec& mixer, LayerParameters& list);
/// Returns the mixer's softmax attention, for methods of sequence parallelism, plan and traffic;
/// null for mixers without softmax attention.
inline const AttentionSpec* attention_in(const SelfAttentionSpec& mixer) {
  return &mixer.attention;
}
/// True if the mixing's output is exactly the output of the softmax attention.
inline bool mixes_by_attention_alone(const SelfAttentionSpec& mixer) { return !mixer.output_gate; }
/// Returns the mixer's rotation.
inline std::optional<RotaryKind> rotary_in(const SelfAttentionSpec& mixer) {
  if (!mixer.rotary) return std::nullopt;
  return RotaryKind{*mixer.rotary, mixer.rotary->dim.value_or(mixer.attention.key_dim)};
}
/// Returns the recurrence of a mixer; nullopt for self-attention.
inline std::optional<RecurrenceSpec> recurrence_in(const SelfAttentionSpec& /*mixer*/) {
  return std::nullopt;
}
TokenMixerCost cost_of(const SelfAttentionSpec& mixer, int64_t hidden_size);

}  // namespace longspan
