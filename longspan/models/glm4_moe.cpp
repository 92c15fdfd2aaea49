// GLM-4.5, GLM-4.5-Air, GLM-4.6 (arXiv 2508.06471): Llama with half of each head rotated and, in
// some models, norms of heads. From some layer on, experts with sigmoid scores beside a shared one.
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

void read_glm4_moe_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {.partial_factor = 0.5}, config);
  mixer.qkv_bias = keys.get<bool>("attention_bias", false);
  mixer.qk_norm = keys.get<bool>("use_qk_norm", false);
  config.spec.pattern = with_sigmoid_experts(
      keys, {.scale = 1.0, .num_groups = 1, .groups_per_token = 1, .dense_layers = 1},
      {mixer, read_gated_mlp(keys)}, config.spec);
}

}  // namespace

extern const Family kGlm4Moe{.model_type = "glm4_moe",
                             .models = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
                             .architecture = "Glm4MoeForCausalLM",
                             .default_tie_word_embeddings = false,
                             .default_rms_norm_eps = 1e-5,
                             .default_max_position_embeddings = 131072,
                             .read_layers = read_glm4_moe_layers};

}  // namespace longspan
