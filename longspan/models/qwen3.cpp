// Qwen3 (arXiv 2505.09388), dense: an RMSNorm over each query and key head, no biases by default.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_types.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

void read_qwen3_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec, {.head_dim = 128});
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {}, config);
  mixer.qk_norm = true;
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  config.spec.pattern =
      with_qwen_windows(keys, mixer, read_gated_mlp(keys), config.spec.num_layers);
}

}  // namespace

extern const Family kQwen3{.model_type = "qwen3",
                           .models = "",
                           .architecture = "Qwen3ForCausalLM",
                           .default_tie_word_embeddings = false,
                           .default_rms_norm_eps = 1e-6,
                           .default_max_position_embeddings = 32768,
                           .read_layers = read_qwen3_layers};

}  // namespace longspan
