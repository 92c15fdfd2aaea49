// Qwen3-VL, dense (arXiv 2511.21631): Qwen3's layers, whose heads rotate by time, row and column,
// and a vision tower that also adds to the outputs of the first layers.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"
#include "longspan/models/vision_keys.h"

namespace longspan {
namespace {

void read_qwen3_vl_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer =
      read_attention(keys, config.spec, {.head_dim = 128, .num_kv_heads = 32});
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, kQwen3VlRotary, config);
  mixer.qk_norm = true;
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  config.spec.pattern = {{mixer, read_gated_mlp(keys)}};
}

}  // namespace

extern const Family kQwen3Vl{
    .model_type = "qwen3_vl_text",
    .models = "Qwen3-VL, dense",
    .architecture = "Qwen3VLForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-6,
    .default_max_position_embeddings = 128000,
    .read_layers = read_qwen3_vl_layers,
    .composite = CompositeKind{"qwen3_vl", "Qwen3VLForConditionalGeneration", kQwenCompositeNames,
                               read_qwen3_vl_vision, kQwenPictureTokens},
    .may_be_alone = false};

}  // namespace longspan
