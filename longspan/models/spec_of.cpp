#include <cmath>

#include "longspan/models/model_config.h"

namespace longspan {
namespace {

LayerSpec layer_of(const ModelConfig& config, bool windowed) {
  SelfAttentionSpec mixer;
  mixer.attention = {.num_heads = config.num_heads,
                     .num_kv_heads = config.num_kv_heads,
                     .key_dim = config.head_dim,
                     .value_dim = config.head_dim,
                     .scale = config.attention_scale.value_or(
                         1.0 / std::sqrt(static_cast<double>(config.head_dim)))};
  if (windowed) mixer.attention.window = config.window;
  mixer.rotary = windowed && config.window_rotary
                     ? *config.window_rotary
                     : RotarySpec{config.rope_theta, config.rope, config.rotary_dim};
  mixer.qk_norm = config.qk_norm;
  mixer.qkv_bias = config.qkv_bias;
  mixer.output_bias = config.output_bias;
  mixer.output_gate = config.output_gate;
  mixer.stored_as_one = config.stored_as_one;
  return {mixer,
          GatedMlpSpec{config.intermediate_size, config.mlp_bias, config.activation,
                       config.stored_as_one},
          config.output_norms};
}

}  // namespace

ModelSpec spec_of(const ModelConfig& config) {
  ModelSpec spec{.vocab_size = config.vocab_size,
                 .hidden_size = config.hidden_size,
                 .padding_token = config.padding_token,
                 .num_layers = config.num_layers,
                 .norm_eps = config.rms_norm_eps,
                 .norm_kind = config.norm_kind,
                 .embedding_scale = config.embedding_scale,
                 .tied_head = config.tie_word_embeddings,
                 .initializer_range = config.initializer_range};
  for (const bool windowed : config.windowed_layers) {
    spec.pattern.push_back(layer_of(config, windowed));
  }
  if (spec.pattern.empty()) spec.pattern = {layer_of(config, config.window.has_value())};
  return spec;
}

}  // namespace longspan
