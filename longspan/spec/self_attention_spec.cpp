#include "longspan/spec/self_attention_spec.h"

#include <algorithm>

namespace longspan {

void list_parameters(const SelfAttentionSpec& mixer, LayerParameters& list) {
  const AttentionSpec& attention = mixer.attention;
  const int64_t N = attention.num_heads, M = attention.num_kv_heads;
  const int64_t K = attention.key_dim, V = attention.value_dim, D = list.hidden_size();
  list.linear("self_attn", "q_proj", N * (mixer.output_gate ? K + V : K), D, mixer.qkv_bias);
  list.linear("self_attn", "k_proj", M * K, D, mixer.qkv_bias);
  list.linear("self_attn", "v_proj", M * V, D, mixer.qkv_bias);
  if (mixer.stored_as_one) list.store_together("self_attn", "qkv_proj", 3);
  list.linear("self_attn", "o_proj", D, N * V, mixer.output_bias);
  if (attention.has_sinks) list.sinks("self_attn", "self_attn.sinks", N);
  if (!mixer.qk_norm) return;
  list.norm("self_attn", "self_attn.q_norm", K);
  list.norm("self_attn", "self_attn.k_norm", K);
}

TokenMixerCost cost_of(const SelfAttentionSpec& mixer, int64_t hidden_size) {
  TokenMixerCost cost = mixing_cost_of(mixer.attention);
  if (mixer.qk_norm) cost.saved_for_norms = cost.queries + cost.keys;
  cost.before = {(cost.queries + cost.keys + cost.values) * hidden_size,
                 std::max(cost.queries, cost.values) * hidden_size};
  cost.after = {cost.output * hidden_size, cost.output * hidden_size};
  if (mixer.output_gate) {
    // The query projection also computes the gate, which is saved with the attention's output.
    cost.before.numbers += cost.output * hidden_size;
    cost.before.largest += cost.output * hidden_size;
    cost.queries += cost.output;
    cost.saved_for_gate = cost.output;
  }
  cost.projection_flops = flops_of_matrices(cost.before.numbers + cost.after.numbers);
  return cost;
}

}  // namespace longspan
