#include <fmt/format.h>

#include "longspan/models/decoder.h"

namespace longspan {

std::vector<ParameterShape> parameter_shapes(const ModelConfig& config) {
  const int64_t D = config.hidden_size, I = config.intermediate_size;
  const int64_t query_dim = config.num_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  std::vector<ParameterShape> shapes;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    shapes.push_back({name + ".weight", {out, in}});
    if (bias) shapes.push_back({name + ".bias", {out}});
  };
  shapes.push_back({"model.embed_tokens.weight", {config.vocab_size, D}});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    linear(prefix + "self_attn.q_proj", query_dim, D, config.qkv_bias);
    linear(prefix + "self_attn.k_proj", kv_dim, D, config.qkv_bias);
    linear(prefix + "self_attn.v_proj", kv_dim, D, config.qkv_bias);
    linear(prefix + "self_attn.o_proj", D, query_dim, config.output_bias);
    if (config.qk_norm) {
      shapes.push_back({prefix + "self_attn.q_norm.weight", {config.head_dim}});
      shapes.push_back({prefix + "self_attn.k_norm.weight", {config.head_dim}});
    }
    linear(prefix + "mlp.gate_proj", I, D, config.mlp_bias);
    linear(prefix + "mlp.up_proj", I, D, config.mlp_bias);
    linear(prefix + "mlp.down_proj", D, I, config.mlp_bias);
    shapes.push_back({prefix + "input_layernorm.weight", {D}});
    shapes.push_back({prefix + "post_attention_layernorm.weight", {D}});
  }
  shapes.push_back({"model.norm.weight", {D}});
  if (!config.tie_word_embeddings) linear("lm_head", config.vocab_size, D, false);
  return shapes;
}

}  // namespace longspan
