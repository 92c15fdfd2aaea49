// Llama 2, 3, 3.1, 3.2, 3.3 (arXiv 2307.09288, 2407.21783): no biases unless the file says so.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

void read_llama_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {}, config);
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  GatedMlpSpec mlp = read_gated_mlp(keys);
  mlp.bias = keys.get<bool>("mlp_bias", false);
  config.spec.pattern = {{mixer, mlp}};
}

}  // namespace

extern const Family kLlama{.model_type = "llama",
                           .models = "Llama 2, 3, 3.x",
                           .architecture = "LlamaForCausalLM",
                           .default_tie_word_embeddings = false,
                           .default_rms_norm_eps = 1e-6,
                           .default_max_position_embeddings = 2048,
                           .read_layers = read_llama_layers};

}  // namespace longspan
