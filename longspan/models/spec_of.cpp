#include <cmath>
#include <utility>
#include <vector>

#include "longspan/models/model_config.h"

namespace longspan {

ModelSpec spec_of(const ModelConfig& config) {
  SelfAttentionSpec mixer;
  mixer.attention = {.num_heads = config.num_heads,
                     .num_kv_heads = config.num_kv_heads,
                     .key_dim = config.head_dim,
                     .value_dim = config.head_dim,
                     .scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim)),
                     .window = config.window};
  mixer.rotary = RotarySpec{config.rope_theta, config.rope, config.rotary_dim};
  mixer.qk_norm = config.qk_norm;
  mixer.qkv_bias = config.qkv_bias;
  mixer.output_bias = config.output_bias;
  mixer.output_gate = config.output_gate;
  const GatedMlpSpec feed_forward{config.intermediate_size, config.mlp_bias};
  std::vector<LayerSpec> pattern;
  for (const bool recurrent : config.recurrent_layers) {
    pattern.push_back(recurrent ? LayerSpec{*config.gated_delta_net, feed_forward}
                                : LayerSpec{mixer, feed_forward});
  }
  if (pattern.empty()) pattern.push_back({mixer, feed_forward});
  return {.vocab_size = config.vocab_size,
          .hidden_size = config.hidden_size,
          .padding_token = config.padding_token,
          .num_layers = config.num_layers,
          .pattern = std::move(pattern),
          .norm_eps = config.rms_norm_eps,
          .norm_kind = config.norm_kind,
          .tied_head = config.tie_word_embeddings,
          .initializer_range = config.initializer_range};
}

}  // namespace longspan
