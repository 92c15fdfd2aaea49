// GLM-4-0414: Llama with norms behind attention and MLP, half of each head rotated in pairs of
// neighbours, and gate and up in one tensor of the files.
#include <fmt/format.h>

#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  // Where a key is missing, transformers' defaults.
  if (!keys.json().contains("head_dim")) config.head_dim = 128;
  if (!keys.json().contains("num_key_value_heads")) config.num_kv_heads = 2;
  if (config.num_heads % config.num_kv_heads != 0) {
    keys.fail(
        fmt::format("num_key_value_heads is missing, and that of this family, {}, does not divide "
                    "num_attention_heads {}. Set it",
                    config.num_kv_heads, config.num_heads));
  }
  if (!keys.json().contains("pad_token_id")) {
    constexpr int64_t kDefaultPadding = 151329;
    if (kDefaultPadding >= config.vocab_size) {
      keys.fail(
          fmt::format("pad_token_id is missing, and that of this family, {}, is outside of "
                      "the vocabulary of {}. Set it to the padding token, or to null",
                      kDefaultPadding, config.vocab_size));
    }
    config.padding_token = kDefaultPadding;
  }
  config.qkv_bias = keys.get<bool>("attention_bias", true);
  config.output_norms = OutputNorms::kGlm4;
  config.gate_up_stored_as_one = true;
  config.rotary_pairs = RotaryPairs::kNeighbours;
}

}  // namespace

extern const Family kGlm4{.model_type = "glm4",
                          .models = "GLM-4-0414",
                          .architecture = "Glm4ForCausalLM",
                          .default_tie_word_embeddings = false,
                          .default_rms_norm_eps = 1.5625e-7,
                          .default_max_position_embeddings = 131072,
                          .read_own_keys = read_own_keys,
                          .default_partial_rotary_factor = 0.5};

}  // namespace longspan
