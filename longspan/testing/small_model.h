// A model of equal layers of attention and a gated MLP, with the parameters that tests vary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/models/model_config.h"

namespace longspan::testing {

struct SmallModel {
  std::string model_type = "llama", architecture = {};
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 1;
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 2;
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-6, initializer_range = 0.02;
  bool tied_head = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false, qk_norm = false;
  std::optional<int64_t> padding_token = {};

  ModelSpec spec() const {
    SelfAttentionSpec mixer;
    mixer.attention = plain_attention(num_heads, num_kv_heads, head_dim);
    mixer.rotary = RotarySpec{};
    mixer.qkv_bias = qkv_bias;
    mixer.output_bias = output_bias;
    mixer.qk_norm = qk_norm;
    ModelSpec model;
    model.vocab_size = vocab_size;
    model.hidden_size = hidden_size;
    model.padding_token = padding_token;
    model.num_layers = num_layers;
    model.pattern = {{mixer, GatedMlpSpec{intermediate_size, mlp_bias}}};
    model.norm_eps = norm_eps;
    model.tied_head = tied_head;
    model.initializer_range = initializer_range;
    return model;
  }
  ModelConfig config() const {
    ModelConfig config;
    config.model_type = model_type;
    config.architecture = architecture;
    config.spec = spec();
    config.max_position_embeddings = max_position_embeddings;
    return config;
  }
};

}  // namespace longspan::testing
