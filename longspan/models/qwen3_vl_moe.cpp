// Qwen3-VL with experts (arXiv 2511.21631): Qwen3-VL with Qwen3's experts in place of the MLP, in
// all layers or in those that its config selects. Files hold the experts stacked.
#include <variant>

#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"
#include "longspan/models/vision_keys.h"

namespace longspan {
namespace {

void read_qwen3_vl_moe_layers(const JsonObject& keys, ModelConfig& config) {
  if (!keys.get<bool>("norm_topk_prob", true)) {
    keys.fail(
        "norm_topk_prob: false: the routers of this family always normalise their weights. Remove "
        "the key");
  }
  SelfAttentionSpec mixer = read_attention(keys, config.spec, {.num_kv_heads = 16});
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, kQwen3VlRotary, config);
  mixer.qk_norm = true;
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  config.router_aux_loss_coef = read_auxiliary_loss(keys);
  // PEFT names no linear layers of stacked experts.
  config.spec.pattern = with_qwen_experts(
      keys, {.normalises = true, .has_gated_shared = false, .adapters = MlpAdapters::kOthers},
      {{mixer, read_gated_mlp(keys)}}, config.spec);
  for (LayerSpec& layer : config.spec.pattern) {
    if (auto* experts = std::get_if<MixtureOfExpertsSpec>(&layer.feed_forward)) {
      experts->stored_in_stacks = true;
    }
  }
}

}  // namespace

extern const Family kQwen3VlMoe{
    .model_type = "qwen3_vl_moe_text",
    .models = "Qwen3-VL with experts",
    .architecture = "Qwen3VLMoeForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-6,
    .default_max_position_embeddings = 128000,
    .read_layers = read_qwen3_vl_moe_layers,
    .composite = CompositeKind{"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration",
                               kQwenCompositeNames, read_qwen3_vl_vision, kQwenPictureTokens,
                               /*may_be_flat=*/false, HeadTie::kBeside},
    .may_be_alone = false};

}  // namespace longspan
