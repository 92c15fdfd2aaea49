// What one attention layer computes, as data: what kernels, strategies, plan and account ask.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "longspan/spec/layer_cost.h"

namespace longspan {

/// One layer of softmax attention. Every kernel and every strategy gets it whole: one that cannot
/// do what it asks refuses by name, and ignores nothing.
struct AttentionSpec {
  int64_t num_heads = 0;     ///< query heads of the whole layer, before any split over ranks
  int64_t num_kv_heads = 0;  ///< key and value heads; divides num_heads
  int64_t key_dim = 0;       ///< numbers in a query's and a key's head
  int64_t value_dim = 0;     ///< numbers in a value's and an output's head
  double scale = 0;          ///< what q k^T is multiplied by; mostly 1 / sqrt(key_dim)
  std::optional<int64_t> window =
      {};  ///< tokens that a query sees, itself among them; none: all before it
  std::optional<double> softcap = {};  ///< c in c tanh(scores / c); none: scores as they are
  bool has_sinks = false;  ///< one more logit a query head in the softmax, with no value
  /// Numbers of a token that keys and values of all heads are made of (latent attention); none:
  /// they are made of more than that. Strategies may pass these numbers on instead.
  std::optional<int64_t> latent_dim = {};

  bool operator==(const AttentionSpec&) const = default;
};

/// softmax(q k^T / sqrt(head_dim)) v, over all keys before a query and its own.
inline AttentionSpec plain_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  return {.num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .key_dim = head_dim,
          .value_dim = head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
}

/// Of a query head, for each pair of a query and a key that it sees: a gemm with keys and one
/// with values; in the backward three with numbers like keys, and two with numbers like values.
inline FlopCost pair_flops_of(const AttentionSpec& attention) {
  const int64_t K = attention.key_dim, V = attention.value_dim;
  return {2 * K + 2 * V, 6 * K + 4 * V};
}

/// What a token mixer costs by the attention in it, without what is around that.
inline TokenMixerCost mixing_cost_of(const AttentionSpec& attention) {
  TokenMixerCost cost;
  cost.queries = attention.num_heads * attention.key_dim;
  cost.keys = attention.num_kv_heads * attention.key_dim;
  cost.values = attention.num_kv_heads * attention.value_dim;
  cost.output = attention.num_heads * attention.value_dim;
  cost.state_bytes = 4 * attention.num_heads;  // the log-sum-exp of each query's scores, in fp32
  cost.pair_flops = pair_flops_of(attention);
  cost.kv_heads = attention.num_kv_heads;
  cost.head_dim = attention.key_dim;
  return cost;
}

}  // namespace longspan
