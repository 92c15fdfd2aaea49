#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "longspan/models/model_config.h"

namespace longspan {
namespace {

/// The layers, some of which have experts in the place of their MLP.
std::vector<LayerSpec> with_experts(const std::vector<LayerSpec>& pattern,
                                    const ModelConfig& config) {
  if (!config.experts) return pattern;
  std::vector<LayerSpec> layers;
  // No longer than the layers are many: both may be as long as a stranger's file says.
  const size_t length = std::min<size_t>(std::lcm(pattern.size(), config.has_experts.size()),
                                         static_cast<size_t>(config.num_layers));
  for (size_t i = 0; i < length; ++i) {
    layers.push_back(pattern[i % pattern.size()]);
    if (config.has_experts[i % config.has_experts.size()]) {
      layers.back().feed_forward = *config.experts;
    }
  }
  return layers;
}

SelfAttentionSpec attention_of(const ModelConfig& config, bool windowed) {
  SelfAttentionSpec mixer;
  mixer.attention = {.num_heads = config.num_heads,
                     .num_kv_heads = config.num_kv_heads,
                     .key_dim = config.head_dim,
                     .value_dim = config.head_dim,
                     .scale = config.attention_scale.value_or(
                         1.0 / std::sqrt(static_cast<double>(config.head_dim)))};
  if (windowed) mixer.attention.window = config.window;
  mixer.attention.has_sinks = config.has_sinks;
  mixer.rotary =
      windowed && config.window_rotary
          ? *config.window_rotary
          : RotarySpec{config.rope_theta, config.rope, config.rotary_dim, config.rotary_pairs};
  mixer.qk_norm = config.qk_norm;
  mixer.qkv_bias = config.qkv_bias;
  mixer.output_bias = config.output_bias;
  mixer.output_gate = config.output_gate;
  mixer.stored_as_one = config.qkv_stored_as_one;
  return mixer;
}

/// Where positions are stretched, scores are multiplied by the square of YaRN's factor for all
/// numbers of a head, as transformers does.
LatentAttentionSpec latent_attention_of(const ModelConfig& config) {
  LatentAttentionSpec mixer = *config.latent_attention;
  mixer.rotary = {config.rope_theta, config.rope, std::nullopt, config.rotary_pairs};
  const double mscale = yarn_mscale(config.rope.factor, config.rope.mscale_all_dim.value_or(0.0));
  mixer.attention.scale = mscale * mscale / std::sqrt(static_cast<double>(mixer.attention.key_dim));
  return mixer;
}

/// What repeats, with an MLP in each layer.
std::vector<LayerSpec> pattern_of(const ModelConfig& config) {
  const GatedMlpSpec feed_forward{config.intermediate_size, config.mlp_bias, config.activation,
                                  config.gate_up_stored_as_one};
  const auto attention = [&](bool windowed) {
    return LayerSpec{attention_of(config, windowed), feed_forward, config.output_norms};
  };
  if (config.latent_attention) {
    return {LayerSpec{latent_attention_of(config), feed_forward, config.output_norms}};
  }
  std::vector<LayerSpec> pattern;
  for (const bool recurrent : config.recurrent_layers) {
    pattern.push_back(recurrent
                          ? LayerSpec{*config.gated_delta_net, feed_forward, config.output_norms}
                          : attention(config.window.has_value()));
  }
  for (const bool windowed : config.windowed_layers) pattern.push_back(attention(windowed));
  if (pattern.empty()) pattern.push_back(attention(config.window.has_value()));
  return pattern;
}

}  // namespace

ModelSpec spec_of(const ModelConfig& config) {
  return {.vocab_size = config.vocab_size,
          .hidden_size = config.hidden_size,
          .padding_token = config.padding_token,
          .num_layers = config.num_layers,
          .extra_layers = config.extra_layers,
          .pattern = with_experts(pattern_of(config), config),
          .norm_eps = config.rms_norm_eps,
          .norm_kind = config.norm_kind,
          .embedding_scale = config.embedding_scale,
          .tied_head = config.tie_word_embeddings,
          .initializer_range = config.initializer_range};
}

}  // namespace longspan
