// GLM-4.5, GLM-4.5-Air, GLM-4.6 (arXiv 2508.06471): Llama with half of each head rotated, norms of
// heads in some, and from some layer on experts that a sigmoid scores, beside a shared one.
#include <fmt/format.h>

#include <algorithm>

#include "longspan/input/numbers.h"
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

constexpr int64_t kMostExtraLayers = 16;

bool is_sparse(const JsonObject& keys, int64_t layer) {
  return layer >= keys.get<int64_t>("first_k_dense_replace", 1);
}

/// A number that may be 0.
int64_t count(const JsonObject& keys, const char* name, int64_t fallback, int64_t most) {
  return keys.has(name) ? keys.whole(name, 0, most) : fallback;
}

MixtureOfExpertsSpec experts_from(const JsonObject& keys) {
  MixtureOfExpertsSpec experts;
  experts.num_experts = count_of_experts(
      keys, keys.has("num_local_experts") ? "num_local_experts" : "n_routed_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = keys.whole("moe_intermediate_size", 1, kMostIndexed);
  experts.router.scores = RouterSpec::Scores::kSigmoid;
  experts.router.has_correction_bias = true;
  experts.router.normalises = keys.get<bool>("norm_topk_prob", true);
  experts.router.epsilon = 1e-20;
  experts.router.scale = keys.get<double>("routed_scaling_factor", 1.0);
  if (keys.has("n_group")) experts.router.num_groups = count_of_experts(keys, "n_group");
  if (keys.has("topk_group")) {
    experts.router.groups_per_token = count_of_experts(keys, "topk_group");
  }
  check_experts(keys, experts);
  const int64_t shared =
      keys.has("n_shared_experts") ? count_of_experts(keys, "n_shared_experts") : 1;
  experts.shared = {
      .intermediate_size = counted_product({shared, experts.expert_size}, "n_shared_experts"),
      .name = "shared_experts"};
  return experts;
}

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.qkv_bias = keys.get<bool>("attention_bias", false);
  config.qk_norm = keys.get<bool>("use_qk_norm", false);
  config.experts = experts_from(keys);
  const int64_t dense = count(keys, "first_k_dense_replace", 1, kMostIndexed);
  config.has_experts = dense == 0 ? std::vector<bool>{true} : each_layer(keys, config, is_sparse);
  if (dense >= config.num_layers) {
    keys.fail(
        fmt::format("first_k_dense_replace is {}, and num_hidden_layers {}: no layer has "
                    "experts. Such a model is one of another type",
                    dense, config.num_layers));
  }
  // Files end with layers that predict further tokens; no loss here trains them.
  config.extra_layers = count(keys, "num_nextn_predict_layers", 1, kMostExtraLayers);
}

}  // namespace

extern const Family kGlm4Moe{.model_type = "glm4_moe",
                             .models = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
                             .architecture = "Glm4MoeForCausalLM",
                             .default_tie_word_embeddings = false,
                             .default_rms_norm_eps = 1e-5,
                             .default_max_position_embeddings = 131072,
                             .read_own_keys = read_own_keys,
                             .default_partial_rotary_factor = 0.5};

}  // namespace longspan
