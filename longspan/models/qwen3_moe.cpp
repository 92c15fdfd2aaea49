// Qwen3 mixtures of experts (arXiv 2505.09388): Qwen3 with experts in place of the MLP, in all
// layers or in those that its config selects.
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

constexpr int64_t kQwen3MoeWindow = 4096;

void read_qwen3_moe_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {}, config);
  mixer.qk_norm = true;
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  // The window applies to all layers, as in transformers for this family.
  if (keys.get<bool>("use_sliding_window", false)) {
    mixer.attention.window = keys.has("sliding_window")
                                 ? keys.whole("sliding_window", 1, kMostIndexed)
                                 : kQwen3MoeWindow;
  }
  config.router_aux_loss_coef = read_auxiliary_loss(keys);
  config.spec.pattern = with_qwen_experts(
      keys, {.normalises = false, .has_gated_shared = false, .adapters = MlpAdapters::kExperts},
      {{mixer, read_gated_mlp(keys)}}, config.spec);
}

}  // namespace

extern const Family kQwen3Moe{.model_type = "qwen3_moe",
                              .models = "Qwen3 30B-A3B, 235B-A22B",
                              .architecture = "Qwen3MoeForCausalLM",
                              .default_tie_word_embeddings = false,
                              .default_rms_norm_eps = 1e-6,
                              .default_max_position_embeddings = 32768,
                              .read_layers = read_qwen3_moe_layers};

}  // namespace longspan
