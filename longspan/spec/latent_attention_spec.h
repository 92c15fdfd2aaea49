// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), as data.
// layers/latent_attention.h has the computation. No torch.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// A token mixer: o(attend(q(x), k, v)). kv_a(x) gives a latent c of kv_rank elements per token,
/// and rope_dim further elements. kv_b(norm(c)) gives the values and the first nope_dim() elements
/// of the keys of all heads. The rope_dim elements are rotated, and are the last elements of each
/// head's key. A query is q(x), or q_b(norm(q_a(x))); the last rope_dim elements of a query are
/// rotated.
struct LatentAttentionSpec {
  /// num_kv_heads = num_heads; key_dim = nope_dim() + rope_dim; latent_dim = kv_rank + rope_dim.
  AttentionSpec attention;
  std::optional<int64_t> query_rank;  ///< elements of q_a(x); none: queries are q(x)
  int64_t kv_rank = 0;                ///< elements of c (kv_lora_rank)
  int64_t rope_dim = 0;               ///< rotated elements of a head; even
  RotarySpec rotary;
  bool bias = false;       ///< in q_a, kv_a and o
  double norm_eps = 1e-6;  ///< epsilon of the norms of latents

  int64_t nope_dim() const { return attention.key_dim - rope_dim; }  ///< unrotated
  /// Elements that kv_b gives each head: the unrotated part of a key, and a value.
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
