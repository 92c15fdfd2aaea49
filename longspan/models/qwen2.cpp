// Qwen2, Qwen2.5 (arXiv 2407.10671): biases on the query, key and value projections only.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_types.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

void read_qwen2_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {}, config);
  mixer.qkv_bias = true;
  config.spec.pattern =
      with_qwen_windows(keys, mixer, read_gated_mlp(keys), config.spec.num_layers);
}

}  // namespace

extern const Family kQwen2{.model_type = "qwen2",
                           .models = "Qwen2, Qwen2.5",
                           .architecture = "Qwen2ForCausalLM",
                           .default_tie_word_embeddings = false,
                           .default_rms_norm_eps = 1e-6,
                           .default_max_position_embeddings = 32768,
                           .read_layers = read_qwen2_layers};

}  // namespace longspan
