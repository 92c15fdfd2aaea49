#include "longspan/spec/latent_attention_spec.h"

#include <algorithm>

namespace longspan {

void list_parameters(const LatentAttentionSpec& mixer, LayerParameters& list) {
  const char* const module = "self_attn";
  const int64_t N = mixer.attention.num_heads, D = list.hidden_size();
  const int64_t queries = N * mixer.attention.key_dim;
  if (mixer.query_rank) {
    list.linear(module, "q_a_proj", *mixer.query_rank, D, mixer.bias);
    list.norm(module, "self_attn.q_a_layernorm", *mixer.query_rank);
    list.linear(module, "q_b_proj", queries, *mixer.query_rank, /*bias=*/false);
  } else {
    list.linear(module, "q_proj", queries, D, /*bias=*/false);
  }
  list.linear(module, "kv_a_proj_with_mqa", mixer.latent_dim(), D, mixer.bias);
  list.norm(module, "self_attn.kv_a_layernorm", mixer.kv_rank);
  list.linear_of_latents(module, "kv_b_proj", N * mixer.expanded_dim(), mixer.kv_rank);
  list.linear(module, "o_proj", D, N * mixer.attention.value_dim, mixer.bias);
}

TokenMixerCost cost_of(const LatentAttentionSpec& mixer, int64_t hidden_size) {
  const int64_t N = mixer.attention.num_heads, D = hidden_size;
  TokenMixerCost cost = mixing_cost_of(mixer.attention);
  cost.latents = mixer.latent_dim();
  // Latents before their norms; for keys and values also the inputs of kv_b and the norm.
  cost.saved_for_norms = mixer.query_rank.value_or(0) + mixer.kv_rank + mixer.latent_dim();
  const int64_t of_queries =
      mixer.query_rank ? *mixer.query_rank * (D + cost.queries) : D * cost.queries;
  const int64_t expanding = mixer.kv_rank * N * mixer.expanded_dim();
  cost.before.numbers = of_queries + mixer.latent_dim() * D + expanding;
  cost.before.largest = std::max(mixer.query_rank.value_or(D) * cost.queries,
                                 std::max(expanding, mixer.latent_dim() * D));
  cost.after = {cost.output * D, cost.output * D};
  cost.projection_flops = flops_of_matrices(cost.before.numbers + cost.after.numbers);
  return cost;
}

}  // namespace longspan
