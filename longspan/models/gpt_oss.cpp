// gpt-oss 20b and 120b (arXiv 2508.10925): attention with sinks and biases, a sliding window in
// every other layer; experts with biases and a clamped SwiGLU, chosen by logits and weighed by a
// softmax over those of the chosen. Files hold the experts stacked, published ones in MXFP4.
#include <fmt/format.h>

#include <algorithm>

#include "longspan/input/numbers.h"
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"
#include "longspan/models/layer_types.h"

namespace longspan {
namespace {

// transformers' defaults for this family.
constexpr int64_t kDefaultHeadDim = 64, kDefaultKvHeads = 8, kDefaultWindow = 128;
constexpr double kDefaultTheta = 150000.0;
constexpr int64_t kNumbersOfScale = 32;  // of MXFP4

void read_attention(const JsonObject& keys, ModelConfig& config) {
  // null is another default, of all families.
  if (!keys.json().contains("head_dim")) config.head_dim = kDefaultHeadDim;
  if (!keys.json().contains("num_key_value_heads")) config.num_kv_heads = kDefaultKvHeads;
  if (config.num_heads % config.num_kv_heads != 0) {
    keys.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                          config.num_heads, config.num_kv_heads));
  }
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", true);
  config.has_sinks = true;
  config.windowed_layers =
      layers_with_window(keys, config.num_layers).value_or(std::vector<bool>{true, false});
  if (std::ranges::find(config.windowed_layers, true) != config.windowed_layers.end()) {
    config.window = keys.json().contains("sliding_window")
                        ? keys.whole("sliding_window", 1, kMostIndexed)
                        : kDefaultWindow;
  }
  config.rope_theta = kDefaultTheta;
  config.rope.type = "yarn";
  config.rope.factor = 32.0;
  config.rope.original_max_position_embeddings = 4096;
  config.rope.truncate = false;
}

MixtureOfExpertsSpec experts_from(const JsonObject& keys, const ModelConfig& config) {
  MixtureOfExpertsSpec experts;
  experts.num_experts =
      count_of_experts(keys, keys.has("num_experts") ? "num_experts" : "num_local_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = config.intermediate_size;
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

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  read_attention(keys, config);
  config.experts = experts_from(keys, config);
  config.has_experts = {true};
  const double coefficient = keys.get<double>("router_aux_loss_coef", 0.001);
  if (keys.get<bool>("output_router_logits", false)) config.router_aux_loss_coef = coefficient;
  const bool divides =
      config.hidden_size % kNumbersOfScale == 0 && config.intermediate_size % kNumbersOfScale == 0;
  if (config.stored_in_mxfp4 && !divides) {
    keys.fail(
        fmt::format("hidden_size {} and intermediate_size {} must be multiples of {}, since the "
                    "experts are stored in MXFP4",
                    config.hidden_size, config.intermediate_size, kNumbersOfScale));
  }
}

}  // namespace

extern const Family kGptOss{.model_type = "gpt_oss",
                            .models = "gpt-oss 20b, 120b",
                            .architecture = "GptOssForCausalLM",
                            .default_tie_word_embeddings = false,
                            .default_rms_norm_eps = 1e-5,
                            .default_max_position_embeddings = 131072,
                            .read_own_keys = read_own_keys,
                            .reads_quantized = "mxfp4"};

}  // namespace longspan
