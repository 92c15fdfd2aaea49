// Qwen3 mixtures of experts (arXiv 2505.09388): Qwen3, with experts in the place of the MLP in all
// layers, or in those that its config names.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/input/numbers.h"
#include "longspan/models/expert_keys.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

constexpr int64_t kMostLayersInStep = int64_t{1} << 20, kDefaultWindow = 4096;

bool is_sparse(const JsonObject& keys, int64_t layer) {
  if (keys.has("mlp_only_layers")) {
    for (const auto& dense : keys.list("mlp_only_layers")) {
      if (dense == layer) return false;
    }
  }
  return (layer + 1) % keys.get<int64_t>("decoder_sparse_step", 1) == 0;
}

void check_layers(const JsonObject& keys) {
  if (keys.has("decoder_sparse_step")) keys.whole("decoder_sparse_step", 1, kMostLayersInStep);
  if (!keys.has("mlp_only_layers")) return;
  const auto& dense = keys.list("mlp_only_layers");
  if (std::ranges::any_of(dense, [](const auto& layer) { return !layer.is_number_integer(); })) {
    keys.fail("mlp_only_layers must be a list of the numbers of layers");
  }
}

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  // Of all layers, as transformers has it for this family.
  if (keys.get<bool>("use_sliding_window", false)) {
    config.window =
        keys.has("sliding_window") ? keys.whole("sliding_window", 1, kMostIndexed) : kDefaultWindow;
  }
  MixtureOfExpertsSpec experts;
  // transformers 5 writes num_local_experts.
  experts.num_experts =
      count_of_experts(keys, keys.has("num_local_experts") ? "num_local_experts" : "num_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = keys.whole("moe_intermediate_size", 1, kMostIndexed);
  experts.router.normalises = keys.get<bool>("norm_topk_prob", false);
  check_experts(keys, experts);
  check_layers(keys);
  config.experts = experts;
  const bool all_alike = keys.get<int64_t>("decoder_sparse_step", 1) == 1 &&
                         (!keys.has("mlp_only_layers") || keys.list("mlp_only_layers").empty());
  config.has_experts = all_alike ? std::vector<bool>{true} : each_layer(keys, config, is_sparse);
  const double coefficient = keys.get<double>("router_aux_loss_coef", 0.001);
  if (keys.get<bool>("output_router_logits", false)) config.router_aux_loss_coef = coefficient;
}

}  // namespace

extern const Family kQwen3Moe{
    "qwen3_moe",  "Qwen3 30B-A3B, 235B-A22B", "Qwen3MoeForCausalLM", false, 1e-6, 32768,
    read_own_keys};

}  // namespace longspan
