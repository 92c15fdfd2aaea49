// Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923): Qwen2's layers, whose heads rotate
// by time, row and column, and a vision tower each.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_types.h"
#include "longspan/models/rotary_keys.h"
#include "longspan/models/vision_keys.h"

namespace longspan {
namespace {

constexpr RotaryAxes kAxes{.sections = {16, 24, 24}, .interleaved = false};
constexpr int64_t kFirstWithWindow = 80;  // transformers' default of max_window_layers

void read_qwen2_vl_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim,
                             {.theta = 1e6, .types = kRopeTypesWithMrope, .axes = kAxes}, config);
  mixer.qkv_bias = true;
  config.spec.pattern = with_qwen_windows(keys, mixer, read_gated_mlp(keys), config.spec.num_layers,
                                          kFirstWithWindow);
}

}  // namespace

extern const Family kQwen2Vl{
    .model_type = "qwen2_vl_text",
    .models = "Qwen2-VL",
    .architecture = "Qwen2VLForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-5,
    .default_max_position_embeddings = 32768,
    .read_layers = read_qwen2_vl_layers,
    .composite = CompositeKind{"qwen2_vl", "Qwen2VLForConditionalGeneration",
                               kQwen2VlCompositeNames, read_qwen2_vl_vision, kQwenPictureTokens,
                               /*may_be_flat=*/true, HeadTie::kBesideOrIn},
    .may_be_alone = false};

extern const Family kQwen2_5Vl{
    .model_type = "qwen2_5_vl_text",
    .models = "Qwen2.5-VL",
    .architecture = "Qwen2_5_VLForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-5,
    .default_max_position_embeddings = 32768,
    .read_layers = read_qwen2_vl_layers,
    .composite = CompositeKind{"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration",
                               kQwen2VlCompositeNames, read_qwen2_5_vl_vision, kQwenPictureTokens,
                               /*may_be_flat=*/true, HeadTie::kBesideOrIn},
    .may_be_alone = false};

}  // namespace longspan
