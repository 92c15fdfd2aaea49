// Gemma 3, text (arXiv 2503.19786): five layers with a sliding window and a rotary base of their
// own, then one without; norms that multiply by 1 + weight, before and behind both halves of a
// layer and over each head; an embedding that is multiplied by the root of its width; GeGLU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "longspan/models/family.h"
#include "longspan/models/layer_types.h"

namespace longspan {
namespace {

/// Which layers have the window: as layer_types says, or all but each sliding_window_pattern-th.
std::vector<bool> windowed_layers(const JsonObject& keys, int64_t num_layers) {
  if (const auto windowed = layers_with_window(keys, num_layers)) return *windowed;
  const auto pattern = keys.get<int64_t>("sliding_window_pattern", 6);
  if (pattern <= 0 || pattern > (int64_t{1} << 20)) {
    keys.fail(fmt::format("sliding_window_pattern is {}, it must be positive and at most {}",
                          pattern, int64_t{1} << 20));
  }
  std::vector<bool> windowed;
  for (int64_t i = 1; i <= pattern; ++i) windowed.push_back(i % pattern != 0);
  return windowed;
}

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  if (!keys.json().contains("head_dim")) config.head_dim = 256;
  if (!keys.json().contains("pad_token_id")) config.padding_token = 0;  // transformers' default
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  config.qk_norm = true;
  config.output_norms = OutputNorms::kGemma3;
  config.norm_kind = NormKind::kOnePlusWeight;
  const auto activation = keys.get<std::string>("hidden_activation", "gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") {
    keys.fail(
        fmt::format("hidden_activation {} is not supported; gelu_pytorch_tanh is", activation));
  }
  config.activation = Geglu{};
  const auto scalar = keys.get<double>("query_pre_attn_scalar", 256.0);
  if (!(scalar > 0)) keys.fail("query_pre_attn_scalar must be positive");
  config.attention_scale = 1.0 / std::sqrt(scalar);
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (keys.has(cap)) {
      keys.fail(fmt::format(
          "{} is not supported in Gemma 3, whose models have none. Set it to null", cap));
    }
  }
  if (keys.get<bool>("use_bidirectional_attention", false)) {
    keys.fail("use_bidirectional_attention: true is not supported, attention is always causal");
  }
  config.windowed_layers = windowed_layers(keys, config.num_layers);
  if (std::ranges::find(config.windowed_layers, true) != config.windowed_layers.end()) {
    config.window = keys.get<int64_t>("sliding_window", 4096);
    if (*config.window <= 0) {
      keys.fail(fmt::format("sliding_window is {}, it must be positive", *config.window));
    }
  }
  config.rope_theta = 1e6;
  config.window_rotary = RotarySpec{keys.get<double>("rope_local_base_freq", 10000.0)};
}

}  // namespace

extern const Family kGemma3{"gemma3_text", "Gemma 3 (text)", "Gemma3ForCausalLM", true,
                            1e-6,          131072,           read_own_keys};

}  // namespace longspan
