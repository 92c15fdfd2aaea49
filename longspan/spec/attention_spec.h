// Description of an attention layer for kernels, methods, plan and memory estimate. No torch.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "longspan/spec/layer_cost.h"

namespace longspan {

/// One layer of softmax attention. Every kernel and method of sequence parallelism gets the whole
/// spec. A kernel or method must refuse by name any property that it does not support, and must
/// ignore no property.
struct AttentionSpec {
  int64_t num_heads = 0;     ///< query heads of the whole layer, before any split over ranks
  int64_t num_kv_heads = 0;  ///< key and value heads; divides num_heads
  int64_t key_dim = 0;       ///< elements of a query's or key's head
  int64_t value_dim = 0;     ///< elements of a value's or output's head
  double scale = 0;          ///< factor of q k^T; mostly 1 / sqrt(key_dim)
  std::optional<int64_t> window = {};  ///< keys that a query sees, including its own; none: all
  std::optional<double> softcap = {};  ///< c in c tanh(scores / c); none: no softcap
  bool has_sinks = false;  ///< one additional logit per query head in the softmax, without a value
  /// Elements per token of the latents from which keys and values of all heads are computed (latent
  /// attention); none: no latents. Methods may send latents instead of keys and values.
  std::optional<int64_t> latent_dim = {};

  bool operator==(const AttentionSpec&) const = default;
};

/// Returns causal attention softmax(q k^T / sqrt(head_dim)) v.
inline AttentionSpec plain_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  return {.num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .key_dim = head_dim,
          .value_dim = head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
}

/// Returns the FLOP of a query head for each pair of a query and a visible key. Forward: one gemm
/// with keys, one gemm with values. Backward: three gemms of width key_dim, two of width value_dim.
inline FlopCost pair_flops_of(const AttentionSpec& attention) {
  const int64_t K = attention.key_dim, V = attention.value_dim;
  return {2 * K + 2 * V, 6 * K + 4 * V};
}

/// Returns the costs of the attention in a token mixer, without the mixer's other steps.
inline TokenMixerCost mixing_cost_of(const AttentionSpec& attention) {
  TokenMixerCost cost;
  cost.queries = attention.num_heads * attention.key_dim;
  cost.keys = attention.num_kv_heads * attention.key_dim;
  cost.values = attention.num_kv_heads * attention.value_dim;
  cost.output = attention.num_heads * attention.value_dim;
  cost.state_bytes = 4 * attention.num_heads;  // log-sum-exp of each query, in fp32
  cost.pair_flops = pair_flops_of(attention);
  cost.kv_heads = attention.num_kv_heads;
  cost.head_dim = attention.key_dim;
  return cost;
}

}  // namespace longspan
