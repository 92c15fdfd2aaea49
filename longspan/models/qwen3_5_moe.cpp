// Qwen3.5's mixtures of experts, their language model: Qwen3.5 with experts and a shared expert in
// place of every MLP.
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/hybrid_layers.h"
#include "longspan/models/vision_keys.h"

namespace longspan {
namespace {

void read_qwen3_5_moe_layers(const JsonObject& keys, ModelConfig& config) {
  if (!keys.get<bool>("norm_topk_prob", true)) {
    keys.fail(
        "norm_topk_prob: false: the routers of this family always normalise their weights. Remove "
        "the key");
  }
  refuse_dense_layers(keys);
  config.router_aux_loss_coef = read_auxiliary_loss(keys);
  read_hybrid_layers(
      keys,
      {.default_kv_heads = 2,
       .projections = GatedDeltaNetSpec::Projections::kApart,
       .axes = kQwen3_5Axes},
      read_qwen_experts(
          keys, {.normalises = true, .has_gated_shared = true, .adapters = MlpAdapters::kOthers}),
      config);
}

}  // namespace

extern const Family kQwen3_5Moe{
    .model_type = "qwen3_5_moe_text",
    .models = "Qwen3.5 35B-A3B to 397B-A17B, their language model",
    .architecture = "Qwen3_5MoeForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-6,
    .default_max_position_embeddings = 32768,
    .read_layers = read_qwen3_5_moe_layers,
    .composite = CompositeKind{"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",
                               kQwenCompositeNames, read_qwen3_5_vision, kQwen3_5PictureTokens}};

}  // namespace longspan
