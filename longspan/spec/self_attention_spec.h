// Softmax attention with the steps that a layer adds to it, as data; layers/self_attention.h
// computes it. No torch.
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
  std::optional<RotarySpec> rotary;  ///< rotation of queries and keys; none: not rotated
  bool qk_norm = false;              ///< an RMSNorm on each head of queries and keys
  bool qkv_bias = false, output_bias = false;
  bool stored_as_one = false;  ///< q, k and v projections are one tensor, qkv_proj, in the files
  /// Multiplies the attention's output elementwise by sigmoid(gate). The query projection computes
  /// both, head by head: key_dim elements of a query, then value_dim of its gate.
  bool output_gate = false;

  bool operator==(const SelfAttentionSpec&) const = default;
};

void list_parameters(const SelfAttentionSpec& mixer, LayerParameters& list);
/// Returns its softmax attention, for methods, plan and traffic; null in mixers without one.
inline const AttentionSpec* attention_in(const SelfAttentionSpec& mixer) {
  return &mixer.attention;
}
/// True if the mixing's output is exactly the output of its softmax attention.
inline bool mixes_by_attention_alone(const SelfAttentionSpec& mixer) { return !mixer.output_gate; }
/// Returns its rotation.
inline std::optional<RotaryKind> rotary_in(const SelfAttentionSpec& mixer) {
  if (!mixer.rotary) return std::nullopt;
  return RotaryKind{*mixer.rotary, mixer.rotary->dim.value_or(mixer.attention.key_dim)};
}
/// Returns its recurrence; nullopt here.
inline std::optional<RecurrenceSpec> recurrence_in(const SelfAttentionSpec& /*mixer*/) {
  return std::nullopt;
}
TokenMixerCost cost_of(const SelfAttentionSpec& mixer, int64_t hidden_size);

}  // namespace longspan
