// Gemma 3 (arXiv 2503.19786). Five layers with a sliding window and their own rotary base,
// then one without. Norms multiply by 1 + weight; they stand before and after both sublayers and on
// each head. The embedding is multiplied by the square root of its width. GeGLU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_pattern.h"
#include "longspan/models/layer_types.h"
#include "longspan/models/rotary_keys.h"
#include "longspan/models/vision_keys.h"

namespace longspan {
namespace {

constexpr LayerNorms kGemma3Norms{
    .before_mixer = "input_layernorm",
    .before_feed_forward = "pre_feedforward_layernorm",
    .behind = LayerNorms::Behind{"post_attention_layernorm", "post_feedforward_layernorm"}};

/// Returns the layers with the window: by layer_types, or all but each sliding_window_pattern-th.
std::vector<bool> windowed_layers(const JsonObject& keys, int64_t num_layers) {
  if (const auto windowed = layers_with_window(keys, num_layers)) return *windowed;
  const auto pattern = keys.get<int64_t>("sliding_window_pattern", 6);
  if (pattern <= 0 || pattern > (int64_t{1} << 20)) {
    keys.fail(fmt::format("sliding_window_pattern is {}, it must be positive and at most {}",
                          pattern, int64_t{1} << 20));
  }
  return all_but_each(pattern);
}

void refuse_what_others_have(const JsonObject& keys) {
  const auto activation = keys.get<std::string>("hidden_activation", "gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") {
    keys.fail(fmt::format(
        "hidden_activation {} is not supported; gelu_pytorch_tanh is. Take a model that has it",
        activation));
  }
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (keys.has(cap)) {
      keys.fail(fmt::format("{} is {}, and models of this type have none. Set it to null", cap,
                            keys.get<double>(cap)));
    }
  }
  if (keys.get<bool>("use_bidirectional_attention", false)) {
    keys.fail(
        "use_bidirectional_attention: true is not supported, attention is always causal. Take a "
        "model that predicts the next token, or set the key to false");
  }
}

SelfAttentionSpec attention_of_gemma3(const JsonObject& keys, const ModelSpec& model) {
  SelfAttentionSpec mixer =
      read_attention(keys, model, {.num_heads = 8, .head_dim = 256, .num_kv_heads = 4});
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  mixer.qk_norm = true;
  const auto scalar = keys.get<double>("query_pre_attn_scalar", 256.0);
  if (!(scalar > 0)) {
    keys.fail(fmt::format("query_pre_attn_scalar is {}, it must be positive", scalar));
  }
  mixer.attention.scale = 1.0 / std::sqrt(scalar);
  return mixer;
}

void read_gemma3_layers(const JsonObject& keys, ModelConfig& config) {
  refuse_what_others_have(keys);
  ModelSpec& model = config.spec;
  model.norm_kind = NormKind::kOnePlusWeight;
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden_size));
  SelfAttentionSpec full = attention_of_gemma3(keys, model), windowed = full;
  const RotaryByKind rotary =
      read_rotary_by_kind(keys, full.attention.key_dim, {.theta = 1e6},
                          {.theta = keys.get<double>("rope_local_base_freq", 10000.0)}, config);
  full.rotary = rotary.full;
  windowed.rotary = rotary.windowed;
  const std::vector<bool> which = windowed_layers(keys, model.num_layers);
  if (std::ranges::find(which, true) != which.end()) {
    windowed.attention.window = keys.get<int64_t>("sliding_window", 4096);
    if (*windowed.attention.window <= 0) {
      keys.fail(
          fmt::format("sliding_window is {}, it must be positive", *windowed.attention.window));
    }
  }
  GatedMlpSpec mlp = read_gated_mlp(keys);
  mlp.activation = Geglu{};
  model.pattern = layers_where(which, {windowed, mlp, kGemma3Norms}, {full, mlp, kGemma3Norms});
}

}  // namespace

extern const Family kGemma3{
    .model_type = "gemma3_text",
    .models = "Gemma 3",
    .architecture = "Gemma3ForCausalLM",
    .default_tie_word_embeddings = true,
    .default_rms_norm_eps = 1e-6,
    .default_max_position_embeddings = 131072,
    .read_layers = read_gemma3_layers,
    .default_vocab_size = 262208,
    .default_padding_token = 0,
    .composite = CompositeKind{.model_type = "gemma3",
                               .architecture = "Gemma3ForConditionalGeneration",
                               .names = kGemma3CompositeNames,
                               .read_vision = read_gemma3_vision,
                               .default_tokens = kGemma3PictureTokens,
                               .token_keys = {.image = "image_token_index",
                                              .video = nullptr,
                                              .start = "boi_token_index",
                                              .end = "eoi_token_index"}}};

}  // namespace longspan
