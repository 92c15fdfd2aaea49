#include "longspan/models/expert_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "longspan/input/numbers.h"
#include "longspan/models/layer_pattern.h"

namespace longspan {
namespace {

/// Limits, because lists of these lengths are made before any weights are read.
constexpr int64_t kMostExperts = 4096, kMostListedLayers = 1024;
constexpr int64_t kMostLayersInStep = int64_t{1} << 20;

/// Returns for each layer whether it has experts, for layers that differ. Throws UserError above
/// kMostListedLayers layers, since the list has one entry per layer.
std::vector<bool> each_layer(const JsonObject& keys, int64_t num_layers,
                             bool (*has_experts)(const JsonObject& keys, int64_t layer)) {
  if (num_layers > kMostListedLayers) {
    keys.fail(fmt::format("num_hidden_layers is {}, and layers differ: at most {} may", num_layers,
                          kMostListedLayers));
  }
  std::vector<bool> layers;
  for (int64_t layer = 0; layer < num_layers; ++layer) layers.push_back(has_experts(keys, layer));
  return layers;
}

bool is_sparse(const JsonObject& keys, int64_t layer) {
  if (keys.has("mlp_only_layers")) {
    for (const auto& dense : keys.list("mlp_only_layers")) {
      if (dense == layer) return false;
    }
  }
  return (layer + 1) % keys.get<int64_t>("decoder_sparse_step", 1) == 0;
}

std::vector<bool> sparse_layers(const JsonObject& keys, int64_t num_layers) {
  if (keys.has("decoder_sparse_step")) keys.whole("decoder_sparse_step", 1, kMostLayersInStep);
  bool all_alike = keys.get<int64_t>("decoder_sparse_step", 1) == 1;
  if (keys.has("mlp_only_layers")) {
    const auto& dense = keys.list("mlp_only_layers");
    if (std::ranges::any_of(dense, [](const auto& layer) { return !layer.is_number_integer(); })) {
      keys.fail("mlp_only_layers must be a list of the numbers of layers");
    }
    all_alike = all_alike && dense.empty();
  }
  return all_alike ? std::vector<bool>{true} : each_layer(keys, num_layers, is_sparse);
}

constexpr int64_t kMostExtraLayers = 16;

/// Reads an integer from 0 to `most`.
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
      .intermediate_size = bounded_product({shared, experts.expert_size}, "n_shared_experts"),
      .name = "shared_experts"};
  return experts;
}

}  // namespace

int64_t count_of_experts(const JsonObject& keys, const char* name) {
  return keys.whole(name, 1, kMostExperts);
}

void check_experts(const JsonObject& keys, const MixtureOfExpertsSpec& experts) {
  const RouterSpec& router = experts.router;
  if (experts.experts_per_token > experts.num_experts) {
    keys.fail(fmt::format("num_experts_per_tok is {}, it must be at most the {} experts",
                          experts.experts_per_token, experts.num_experts));
  }
  if (router.num_groups == 1) return;
  const int64_t size = experts.num_experts / router.num_groups;
  if (size * router.num_groups != experts.num_experts || size < 2) {
    keys.fail(
        fmt::format("n_group is {}: it must divide {} experts into equal parts, of two at least",
                    router.num_groups, experts.num_experts));
  }
  if (router.groups_per_token > router.num_groups) {
    keys.fail(fmt::format("topk_group is {}, it must be at most n_group, {}",
                          router.groups_per_token, router.num_groups));
  }
  if (experts.experts_per_token > router.groups_per_token * size) {
    keys.fail(fmt::format(
        "num_experts_per_tok is {}, it must be at most the {} experts of a token's groups: "
        "topk_group {} with {} experts each",
        experts.experts_per_token, router.groups_per_token * size, router.groups_per_token, size));
  }
}

MixtureOfExpertsSpec read_qwen_experts(const JsonObject& keys, const QwenExperts& kind) {
  MixtureOfExpertsSpec experts;
  // transformers 5 writes num_local_experts for Qwen3-MoE.
  experts.num_experts =
      count_of_experts(keys, keys.has("num_local_experts") ? "num_local_experts" : "num_experts");
  experts.experts_per_token = count_of_experts(keys, "num_experts_per_tok");
  experts.expert_size = keys.whole("moe_intermediate_size", 1, kMostIndexed);
  experts.router.normalises = keys.get<bool>("norm_topk_prob", kind.normalises);
  experts.adapters = kind.adapters;
  check_experts(keys, experts);
  if (kind.has_gated_shared) {
    experts.shared = {
        .intermediate_size = keys.whole("shared_expert_intermediate_size", 1, kMostIndexed),
        .name = "shared_expert",
        .is_gated = true};
  }
  return experts;
}

std::vector<LayerSpec> with_qwen_experts(const JsonObject& keys, const QwenExperts& kind,
                                         const std::vector<LayerSpec>& pattern,
                                         const ModelSpec& model) {
  const MixtureOfExpertsSpec experts = read_qwen_experts(keys, kind);
  return with_feed_forward(pattern, experts, sparse_layers(keys, model.num_layers),
                           model.num_layers);
}

void refuse_dense_layers(const JsonObject& keys) {
  const bool asks = keys.get<int64_t>("decoder_sparse_step", 1) != 1 ||
                    (keys.has("mlp_only_layers") && !keys.list("mlp_only_layers").empty());
  if (asks) {
    keys.fail(
        "decoder_sparse_step or mlp_only_layers asks for layers without experts, and all layers of "
        "this family have some. Remove the key");
  }
}

std::optional<double> read_auxiliary_loss(const JsonObject& keys) {
  const double coefficient = keys.get<double>("router_aux_loss_coef", 0.001);
  if (!keys.get<bool>("output_router_logits", false)) return std::nullopt;
  return coefficient;
}

std::vector<LayerSpec> with_sigmoid_experts(const JsonObject& keys, const SigmoidDefaults& defaults,
                                            const LayerSpec& dense, ModelSpec& model) {
  const MixtureOfExpertsSpec experts = sigmoid_experts(keys, defaults);
  const int64_t num_dense =
      count(keys, "first_k_dense_replace", defaults.dense_layers, kMostIndexed);
  if (num_dense >= model.num_layers) {
    keys.fail(
        fmt::format("first_k_dense_replace is {}, it must be less than num_hidden_layers, {}: no "
                    "layer has experts otherwise. Take a model of a dense type",
                    num_dense, model.num_layers));
  }
  std::vector<bool> which{true};
  if (num_dense > 0) {
    which = each_layer(keys, model.num_layers, [](const JsonObject&, int64_t) { return true; });
    std::fill_n(which.begin(), num_dense, false);
  }
  model.extra_layers = count(keys, "num_nextn_predict_layers", 1, kMostExtraLayers);
  return with_feed_forward({dense}, experts, which, model.num_layers);
}

}  // namespace longspan
