#include "longspan/models/expert_keys.h"

#include <fmt/format.h>

namespace longspan {
namespace {

/// Lists are made of these numbers before any weights are looked at.
constexpr int64_t kMostExperts = 4096, kMostLayers = 1024;

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

}  // namespace longspan
