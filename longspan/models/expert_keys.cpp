#include "longspan/models/expert_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/input/numbers.h"

namespace longspan {
namespace {

/// Lists are made of these numbers before any weights are looked at.
constexpr int64_t kMostExperts = 4096, kMostLayers = 1024;
constexpr int64_t kMostLayersInStep = int64_t{1} << 20;

bool is_sparse(const JsonObject& keys, int64_t layer) {
  if (keys.has("mlp_only_layers")) {
    for (const auto& dense : keys.list("mlp_only_layers")) {
      if (dense == layer) return false;
    }
  }
  return (layer + 1) % keys.get<int64_t>("decoder_sparse_step", 1) == 0;
}

std::vector<bool> sparse_layers(const JsonObject& keys, const ModelConfig& config) {
  if (keys.has("decoder_sparse_step")) keys.whole("decoder_sparse_step", 1, kMostLayersInStep);
  bool all_alike = keys.get<int64_t>("decoder_sparse_step", 1) == 1;
  if (keys.has("mlp_only_layers")) {
    const auto& dense = keys.list("mlp_only_layers");
    if (std::ranges::any_of(dense, [](const auto& layer) { return !layer.is_number_integer(); })) {
      keys.fail("mlp_only_layers must be a list of the numbers of layers");
    }
    all_alike = all_alike && dense.empty();
  }
  return all_alike ? std::vector<bool>{true} : each_layer(keys, config, is_sparse);
}

/// Of a family all of whose layers have experts: keys of its relatives that ask for others.
void refuse_dense_layers(const JsonObject& keys) {
  const bool asks = keys.get<int64_t>("decoder_sparse_step", 1) != 1 ||
                    (keys.has("mlp_only_layers") && !keys.list("mlp_only_layers").empty());
  if (asks) {
    keys.fail(
        "decoder_sparse_step or mlp_only_layers asks for layers without experts, and all layers of "
        "this family have some. Remove the key");
  }
}

constexpr int64_t kMostExtraLayers = 16;

/// A number that may be 0.
int64_t count(const JsonObject& keys, const char* name, int64_t fallback, int64_t most) {
  return keys.has(name) ? keys.whole(name, 0, most) : fallback;
}

int64_t experts_or(const JsonObject& keys, const char* name, int64_t fallback) {
  return keys.has(name) ? count_of_experts(keys, name) : fallback;
}

MixtureOfExpertsSpec sigmoid_experts(const JsonObject& keys, const SigmoidDefaults& defaults) {
  MixtureOfExpertsSpec experts;
  experts.num_experts = count_of_experts(
      keys, keys.has("num_local_experts") ? "num_local_experts" : "n_routed_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = keys.whole("moe_intermediate_size", 1, kMostIndexed);
  experts.router.scores = RouterSpec::Scores::kSigmoid;
  experts.router.has_correction_bias = true;
  experts.router.normalises = keys.get<bool>("norm_topk_prob", true);
  experts.router.epsilon = 1e-20;
  experts.router.scale = keys.get<double>("routed_scaling_factor", defaults.scale);
  experts.router.num_groups = experts_or(keys, "n_group", defaults.num_groups);
  experts.router.groups_per_token = experts_or(keys, "topk_group", defaults.groups_per_token);
  check_experts(keys, experts);
  const int64_t shared = experts_or(keys, "n_shared_experts", 1);
  experts.shared = {
      .intermediate_size = counted_product({shared, experts.expert_size}, "n_shared_experts"),
      .name = "shared_experts"};
  return experts;
}

}  // namespace

int64_t count_of_experts(const JsonObject& keys, const char* name) {
  return keys.whole(name, 1, kMostExperts);
}

std::vector<bool> each_layer(const JsonObject& keys, const ModelConfig& config,
                             bool (*has_experts)(const JsonObject& keys, int64_t layer)) {
  if (config.num_layers > kMostLayers) {
    keys.fail(fmt::format("num_hidden_layers is {}, and layers differ: at most {} may",
                          config.num_layers, kMostLayers));
  }
  std::vector<bool> layers;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(has_experts(keys, layer));
  }
  return layers;
}

void check_experts(const JsonObject& keys, const MixtureOfExpertsSpec& experts) {
  const RouterSpec& router = experts.router;
  if (experts.experts_per_token > experts.num_experts) {
    keys.fail(fmt::format("num_experts_per_tok is {}, of {} experts", experts.experts_per_token,
                          experts.num_experts));
  }
  if (router.num_groups == 1) return;
  const int64_t size = experts.num_experts / router.num_groups;
  if (size * router.num_groups != experts.num_experts || size < 2) {
    keys.fail(
        fmt::format("n_group is {}: it must divide {} experts into equal parts, of two at least",
                    router.num_groups, experts.num_experts));
  }
  if (router.groups_per_token > router.num_groups ||
      experts.experts_per_token > router.groups_per_token * size) {
    keys.fail(fmt::format(
        "topk_group is {}, of n_group {} with {} experts each, and num_experts_per_tok is {}",
        router.groups_per_token, router.num_groups, size, experts.experts_per_token));
  }
}

void read_qwen_experts(const JsonObject& keys, const QwenExperts& kind, ModelConfig& config) {
  MixtureOfExpertsSpec experts;
  // transformers 5 writes num_local_experts for Qwen3-MoE.
  experts.num_experts =
      count_of_experts(keys, keys.has("num_local_experts") ? "num_local_experts" : "num_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = keys.whole("moe_intermediate_size", 1, kMostIndexed);
  experts.router.normalises = keys.get<bool>("norm_topk_prob", kind.normalises);
  check_experts(keys, experts);
  if (kind.has_gated_shared) {
    experts.shared = {
        .intermediate_size = keys.whole("shared_expert_intermediate_size", 1, kMostIndexed),
        .name = "shared_expert",
        .is_gated = true};
  }
  config.experts = experts;
  if (kind.may_be_dense) {
    config.has_experts = sparse_layers(keys, config);
  } else {
    refuse_dense_layers(keys);
    config.has_experts = {true};
  }
  const double coefficient = keys.get<double>("router_aux_loss_coef", 0.001);
  if (keys.get<bool>("output_router_logits", false)) config.router_aux_loss_coef = coefficient;
}

void read_sigmoid_experts(const JsonObject& keys, const SigmoidDefaults& defaults,
                          ModelConfig& config) {
  config.experts = sigmoid_experts(keys, defaults);
  const int64_t dense = count(keys, "first_k_dense_replace", defaults.dense_layers, kMostIndexed);
  if (dense >= config.num_layers) {
    keys.fail(
        fmt::format("first_k_dense_replace is {}, and num_hidden_layers {}: no layer has "
                    "experts. Such a model is one of another type",
                    dense, config.num_layers));
  }
  if (dense == 0) {
    config.has_experts = {true};
  } else {
    config.has_experts = each_layer(keys, config, [](const JsonObject&, int64_t) { return true; });
    std::fill_n(config.has_experts.begin(), dense, false);
  }
  config.extra_layers = count(keys, "num_nextn_predict_layers", 1, kMostExtraLayers);
}

}  // namespace longspan
