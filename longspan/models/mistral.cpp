// Mistral 7B (arXiv 2310.06825), Mistral Nemo, Mistral Small: Llama without biases. The first has a
// sliding window in all layers.
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

constexpr int64_t kMistralWindow = 4096;  // transformers' default for this family

void read_mistral_layers(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {}, config);
  mixer.attention.window = read_window(keys, kMistralWindow);
  config.spec.pattern = {{mixer, read_gated_mlp(keys)}};
}

}  // namespace

extern const Family kMistral{
    .model_type = "mistral",
    .models = "Mistral 7B, Nemo, Small",
    .architecture = "MistralForCausalLM",
    .default_tie_word_embeddings = false,
    .default_rms_norm_eps = 1e-6,
    .default_max_position_embeddings = 131072,
    .read_layers = read_mistral_layers,
    .composite =
        CompositeKind{"mistral3", "Mistral3ForConditionalGeneration", kLlavaCompositeNames}};

}  // namespace longspan
