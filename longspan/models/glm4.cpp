// GLM-4-0414: Llama with norms after attention and MLP, half of each head rotated in neighbouring
// pairs, and gate and up in one tensor of the files.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

constexpr LayerNorms kNorms{
    .before_mixer = "input_layernorm",
    .before_feed_forward = "post_attention_layernorm",
    .behind = LayerNorms::Behind{"post_self_attn_layernorm", "post_mlp_layernorm"}};

void read_glm4_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec, {.head_dim = 128, .num_kv_heads = 2});
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim,
                             {.pairs = RotaryPairs::kNeighbours, .partial_factor = 0.5}, config);
  mixer.qkv_bias = keys.get<bool>("attention_bias", true);
  GatedMlpSpec mlp = read_gated_mlp(keys);
  mlp.stored_as_one = true;
  config.spec.pattern = {{mixer, mlp, kNorms}};
}

}  // namespace

extern const Family kGlm4{.model_type = "glm4",
                          .models = "GLM-4-0414",
                          .architecture = "Glm4ForCausalLM",
                          .default_tie_word_embeddings = false,
                          .default_rms_norm_eps = 1.5625e-7,
                          .default_max_position_embeddings = 131072,
                          .read_layers = read_glm4_layers,
                          .default_padding_token = 151329};

}  // namespace longspan
