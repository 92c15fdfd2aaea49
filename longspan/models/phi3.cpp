// Phi-3 (arXiv 2404.14219), Phi-4 (arXiv 2412.08905) and Phi-4-mini (arXiv 2503.01743): Llama whose
// files fuse the query, key and value projections in one tensor, and gate and up in another.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

/// transformers accepts the older names of longrope too, and no other scaling.
constexpr std::pair<std::string_view, RopeScaling::Type> kTypes[] = {
    {"default", RopeScaling::Type::kDefault},
    {"longrope", RopeScaling::Type::kLongrope},
    {"su", RopeScaling::Type::kLongrope},
    {"yarn", RopeScaling::Type::kLongrope}};
constexpr int64_t kOriginalPositions = 4096;

void read_phi3_layers(const JsonObject& keys, ModelConfig& config) {
  for (const char* dropout : {"resid_pdrop", "embd_pdrop"}) {
    if (const auto share = keys.get<double>(dropout, 0.0); share != 0.0) {
      keys.fail(fmt::format("{} is {}: hidden states have no dropout in training. Set it to 0",
                            dropout, share));
    }
  }
  SelfAttentionSpec mixer = read_attention(keys, config.spec);
  mixer.rotary = read_rotary(
      keys, mixer.attention.key_dim,
      {.partial_factor = 1.0, .types = kTypes, .original_positions = kOriginalPositions}, config);
  mixer.attention.window = read_window(keys, std::nullopt);
  mixer.stored_as_one = true;
  GatedMlpSpec mlp = read_gated_mlp(keys);
  mlp.stored_as_one = true;
  config.spec.pattern = {{mixer, mlp}};
}

}  // namespace

extern const Family kPhi3{.model_type = "phi3",
                          .models = "Phi-3, Phi-4",
                          .architecture = "Phi3ForCausalLM",
                          .default_tie_word_embeddings = false,
                          .default_rms_norm_eps = 1e-5,
                          .default_max_position_embeddings = 4096,
                          .read_layers = read_phi3_layers,
                          .default_padding_token = 32000};

}  // namespace longspan
