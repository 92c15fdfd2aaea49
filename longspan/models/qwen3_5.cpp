// Qwen3.5, dense, its language model: three layers of GatedDeltaNet (arXiv 2412.06464), then one of
// softmax attention with an output gate and a quarter of each head rotated.
#include "longspan/models/family.h"
#include "longspan/models/hybrid_layers.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/vision_keys.h"

namespace longspan {
namespace {

void read_qwen3_5_layers(const JsonObject& keys, ModelConfig& config) {
  read_hybrid_layers(keys,
                     {.default_kv_heads = 4,
                      .projections = GatedDeltaNetSpec::Projections::kApart,
                      .axes = kQwen3_5Axes},
                     read_gated_mlp(keys), config);
}

}  // namespace

extern const Family kQwen3_5{
    .model_type = "qwen3_5_text",
    .models = "Qwen3.5 dense, its language model",
    .architecture = "Qwen3_5ForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-6,
    .default_max_position_embeddings = 32768,
    .read_layers = read_qwen3_5_layers,
    .composite = CompositeKind{"qwen3_5", "Qwen3_5ForConditionalGeneration", kQwenCompositeNames,
                               read_qwen3_5_vision, kQwen3_5PictureTokens}};

}  // namespace longspan
