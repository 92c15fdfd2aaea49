// DeepSeek-V3, V3.1, R1 (arXiv 2412.19437) and models of their shape: latent attention; from some
// layer on, experts in groups with sigmoid scores, beside shared experts. Published files hold most
// matrices in fp8.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

/// Limit of head and latent sizes, so that their products do not overflow.
constexpr int64_t kMostOfHead = int64_t{1} << 20;

int64_t size_of(const JsonObject& keys, const char* name, int64_t fallback) {
  return keys.contains(name) ? keys.whole(name, 1, kMostOfHead) : fallback;
}

/// With scaled positions, scores are multiplied by the square of YaRN's factor, on all elements of
/// a head, as in transformers.
double scale_of(const LatentAttentionSpec& mixer) {
  const RopeScaling& scaling = mixer.rotary.scaling;
  const double mscale = yarn_mscale(scaling.factor, scaling.mscale_all_dim.value_or(0.0));
  return mscale * mscale / std::sqrt(static_cast<double>(mixer.attention.key_dim));
}

LatentAttentionSpec latent_attention_from(const JsonObject& keys, ModelConfig& config) {
  LatentAttentionSpec mixer;
  mixer.rope_dim = size_of(keys, "qk_rope_head_dim", 64);
  if (mixer.rope_dim % 2 != 0) {
    keys.fail(
        fmt::format("qk_rope_head_dim {} is odd, rotary embeddings need pairs", mixer.rope_dim));
  }
  mixer.kv_rank = size_of(keys, "kv_lora_rank", 512);
  // null means no latent; a missing key means transformers' default.
  constexpr int64_t kDefaultQueryRank = 1536;
  if (!keys.contains("q_lora_rank")) {
    mixer.query_rank = kDefaultQueryRank;
  } else if (keys.has("q_lora_rank")) {
    mixer.query_rank = keys.whole("q_lora_rank", 1, kMostOfHead);
  }
  mixer.bias = keys.get<bool>("attention_bias", false);
  mixer.attention = read_head_counts(keys);
  if (mixer.attention.num_kv_heads != mixer.attention.num_heads) {
    keys.fail(
        fmt::format("num_key_value_heads is {}, and num_attention_heads {}: latent attention has a "
                    "key and a value for each query head. Set both to the same number",
                    mixer.attention.num_kv_heads, mixer.attention.num_heads));
  }
  mixer.attention.key_dim = size_of(keys, "qk_nope_head_dim", 128) + mixer.rope_dim;
  mixer.attention.value_dim = size_of(keys, "v_head_dim", 128);
  mixer.attention.latent_dim = mixer.latent_dim();
  const bool interleaved = keys.get<bool>("rope_interleave", true);
  mixer.rotary =
      read_rotary(keys, mixer.rope_dim,
                  {.pairs = interleaved ? RotaryPairs::kNeighbours : RotaryPairs::kHalves}, config);
  mixer.attention.scale = scale_of(mixer);
  return mixer;
}

/// Checks keys that transformers does not read: those of DeepSeek's own code must have the one
/// value that transformers implements; head_dim, which transformers writes, must only be positive.
void check_ignored_keys(const JsonObject& keys) {
  if (keys.has("head_dim")) positive(keys, "head_dim");
  for (const auto& [name, known] :
       {std::pair{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}}) {
    if (const auto value = keys.get<std::string>(name, known); value != known) {
      keys.fail(fmt::format(
          "{} {} is not supported; {} is, as models of this type have it. Take a model that has it",
          name, value, known));
    }
  }
  if (const auto every = keys.get<int64_t>("moe_layer_freq", 1); every != 1) {
    keys.fail(
        fmt::format("moe_layer_freq {} is not supported; 1 is: all layers behind the first "
                    "first_k_dense_replace have experts. Take a model of which that holds",
                    every));
  }
}

void read_deepseek_v3_layers(const JsonObject& keys, ModelConfig& config) {
  check_ignored_keys(keys);
  const LatentAttentionSpec mixer = latent_attention_from(keys, config);
  config.spec.pattern = with_sigmoid_experts(
      keys, {.scale = 2.5, .num_groups = 8, .groups_per_token = 4, .dense_layers = 3},
      {mixer, read_gated_mlp(keys)}, config.spec);
}

}  // namespace

extern const Family kDeepseekV3{.model_type = "deepseek_v3",
                                .models = "DeepSeek-V3, V3.1, R1",
                                .architecture = "DeepseekV3ForCausalLM",
                                .default_tie_word_embeddings = false,
                                .default_rms_norm_eps = 1e-6,
                                .default_max_position_embeddings = 4096,
                                .read_layers = read_deepseek_v3_layers,
                                .reads_quantized = StoredNumbers::Format::kFp8};

}  // namespace longspan
