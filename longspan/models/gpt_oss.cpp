// gpt-oss 20b and 120b (arXiv 2508.10925). Attention with sinks and biases, with a sliding window
// in every other layer. Experts with biases and a clamped SwiGLU, chosen by logits and weighted by
// a softmax over the logits of the chosen. Files hold the experts stacked; published files hold
// them in MXFP4.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_pattern.h"
#include "longspan/models/layer_types.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

// Defaults of transformers for this family.
constexpr int64_t kDefaultHeadDim = 64, kDefaultKvHeads = 8, kGptOssWindow = 128;
constexpr double kDefaultTheta = 150000.0;
constexpr int64_t kNumbersOfScale = 32;  // elements per scale of MXFP4

SelfAttentionSpec attention_of_gpt_oss(const JsonObject& keys, ModelConfig& config) {
  SelfAttentionSpec mixer = read_attention(
      keys, config.spec, {.head_dim = kDefaultHeadDim, .num_kv_heads = kDefaultKvHeads});
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", true);
  mixer.attention.has_sinks = true;
  RopeScaling scaling{.type = RopeScaling::Type::kYarn, .factor = 32.0};
  scaling.original_max_position_embeddings = 4096;
  scaling.truncate = false;
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim,
                             {.theta = kDefaultTheta, .scaling = scaling}, config);
  return mixer;
}

MixtureOfExpertsSpec experts_from(const JsonObject& keys) {
  MixtureOfExpertsSpec experts;
  experts.num_experts =
      count_of_experts(keys, keys.has("num_experts") ? "num_experts" : "num_local_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = positive(keys, "intermediate_size");
  experts.router.scores = RouterSpec::Scores::kSoftmaxOfChosen;
  experts.router.has_bias = true;
  experts.router.name = "router";
  ClampedSwiglu activation;
  activation.slope = keys.get<double>("swiglu_alpha", activation.slope);
  activation.limit = keys.get<double>("swiglu_limit", activation.limit);
  if (!(activation.limit > 0)) {
    keys.fail(fmt::format("swiglu_limit is {}, it must be positive", activation.limit));
  }
  experts.activation = activation;
  experts.bias = experts.stacked = true;
  check_experts(keys, experts);
  return experts;
}

void read_gpt_oss_layers(const JsonObject& keys, ModelConfig& config) {
  ModelSpec& model = config.spec;
  const SelfAttentionSpec full = attention_of_gpt_oss(keys, config);
  SelfAttentionSpec windowed = full;
  const std::vector<bool> which =
      layers_with_window(keys, model.num_layers).value_or(std::vector<bool>{true, false});
  if (std::ranges::find(which, true) != which.end()) {
    if (keys.contains("sliding_window") && !keys.has("sliding_window")) {
      keys.fail(
          "sliding_window is null, and layer_types has sliding_attention. Set sliding_window to "
          "the "
          "window's tokens, or all of layer_types to full_attention");
    }
    windowed.attention.window =
        keys.has("sliding_window") ? keys.whole("sliding_window", 1, kMostIndexed) : kGptOssWindow;
  }
  const MixtureOfExpertsSpec experts = experts_from(keys);
  model.pattern = layers_where(which, {windowed, experts}, {full, experts});
  config.router_aux_loss_coef = read_auxiliary_loss(keys);
  const bool divides =
      model.hidden_size % kNumbersOfScale == 0 && experts.expert_size % kNumbersOfScale == 0;
  if (config.stored.format == StoredNumbers::Format::kMxfp4 && !divides) {
    keys.fail(
        fmt::format("hidden_size {} and intermediate_size {} must be multiples of {}, since the "
                    "experts are stored in MXFP4",
                    model.hidden_size, experts.expert_size, kNumbersOfScale));
  }
}

}  // namespace

extern const Family kGptOss{.model_type = "gpt_oss",
                            .models = "gpt-oss 20b, 120b",
                            .architecture = "GptOssForCausalLM",
                            .default_tie_word_embeddings = false,
                            .default_rms_norm_eps = 1e-5,
                            .default_max_position_embeddings = 131072,
                            .read_layers = read_gpt_oss_layers,
                            .reads_quantized = StoredNumbers::Format::kMxfp4};

}  // namespace longspan
