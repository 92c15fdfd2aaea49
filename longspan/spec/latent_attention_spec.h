// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), as data. No torch. What
// it computes is in layers/latent_attention.h.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// A token mixer: o(attend(q(x), k, v)). Keys and values of all heads are made of a latent of
/// kv_rank numbers a token, kv_b(norm(c)), and each key ends with rope_dim rotated numbers that all
/// heads share; kv_a(x) is c and those. A query is q(x), or q_b(norm(q_a(x))), and its last
/// rope_dim numbers are rotated.
struct LatentAttentionSpec {
  /// As many kv heads as query heads. key_dim: nope_dim() and then rope_dim; latent_dim: kv_rank
  /// and rope_dim.
  AttentionSpec attention;
  std::optional<int64_t> query_rank;  ///< numbers of q_a(x); none: queries are q(x)
  int64_t kv_rank = 0;                ///< numbers of c (kv_lora_rank)
  int64_t rope_dim = 0;               ///< numbers of a head that are rotated, an even number
  RotarySpec rotary;
  bool bias = false;       ///< of q_a, kv_a and o
  double norm_eps = 1e-6;  ///< of the norms of latents

  int64_t nope_dim() const { return attention.key_dim - rope_dim; }  ///< not rotated
  /// What kv_b makes for each head: of a key what is not rotated, and a value.
  int64_t expanded_dim() const { return nope_dim() + attention.value_dim; }
  int64_t latent_dim() const { return kv_rank + rope_dim; }

  bool operator==(const LatentAttentionSpec&) const = default;
};

void list_parameters(const LatentAttentionSpec& mixer, LayerParameters& list);
inline const AttentionSpec* attention_in(const LatentAttentionSpec& mixer) {
  return &mixer.attention;
}
inline bool mixes_by_attention_alone(const LatentAttentionSpec& /*mixer*/) { return true; }
inline std::optional<RotaryKind> rotary_in(const LatentAttentionSpec& mixer) {
  return RotaryKind{mixer.rotary, mixer.rope_dim};
}
inline std::optional<RecurrenceSpec> recurrence_in(const LatentAttentionSpec& /*mixer*/) {
  return std::nullopt;
}
TokenMixerCost cost_of(const LatentAttentionSpec& mixer, int64_t hidden_size);

}  // namespace longspan
