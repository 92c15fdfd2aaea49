// Phi-4 (arXiv 2412.08905) and Phi-3 with plain rotation: Llama whose files have one tensor for the
// queries', keys' and values' projections, and one for gate and up.
#include <fmt/format.h>

#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

void read_layers(const JsonObject& keys, ModelConfig& config) {
  for (const char* dropout : {"resid_pdrop", "embd_pdrop"}) {
    if (keys.get<double>(dropout, 0.0) != 0.0) {
      keys.fail(fmt::format("{} other than 0 is not supported", dropout));
    }
  }
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim, {.partial_factor = 1.0}, config);
  mixer.attention.window = read_window(keys, std::nullopt);
  mixer.stored_as_one = true;
  GatedMlpSpec mlp = read_gated_mlp(keys);
  mlp.stored_as_one = true;
  config.spec.pattern = {{mixer, mlp}};
}

}  // namespace

extern const Family kPhi3{.model_type = "phi3",
                          .models = "Phi-4",
                          .architecture = "Phi3ForCausalLM",
                          .default_tie_word_embeddings = false,
                          .default_rms_norm_eps = 1e-5,
                          .default_max_position_embeddings = 4096,
                          .read_layers = read_layers,
                          .default_padding_token = 32000};

}  // namespace longspan
