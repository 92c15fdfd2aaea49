#include "longspan/models/hybrid_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longspan/input/numbers.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_pattern.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

constexpr const char *kRecurrent = "linear_attention", *kSoftmax = "full_attention";
/// Limit of the pattern's length, since some patterns are made from a number alone.
constexpr int64_t kMostOfPattern = 4096;

int64_t bounded(const JsonObject& keys, const char* name, int64_t fallback, int64_t most) {
  const auto value = keys.get<int64_t>(name, fallback);
  if (value <= 0 || value > most) {
    keys.fail(fmt::format("{} is {}, it must be positive and at most {}", name, value, most));
  }
  return value;
}

std::vector<bool> layers_of_types(const JsonObject& keys, int64_t num_layers) {
  const nlohmann::json& types = keys.value("layer_types");
  if (!types.is_array() || std::ssize(types) != num_layers) {
    keys.fail(
        fmt::format("layer_types must be a list of one kind for each of {} layers", num_layers));
  }
  std::vector<bool> recurrent;
  for (const nlohmann::json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (name != kRecurrent && name != kSoftmax) {
      keys.fail(fmt::format("layer_types has {}; {} and {} are supported", type.dump(), kRecurrent,
                            kSoftmax));
    }
    recurrent.push_back(name == kRecurrent);
  }
  return recurrent;
}

/// Returns the shortest prefix whose repetition gives `layers`.
std::vector<bool> shortest_pattern(const std::vector<bool>& layers) {
  const size_t most = std::min<size_t>(layers.size(), kMostOfPattern);
  for (size_t length = 1; length < most; ++length) {
    bool repeats = true;
    for (size_t i = length; repeats && i < layers.size(); ++i) {
      repeats = layers[i] == layers[i - length];
    }
    if (repeats) return {layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(length)};
  }
  return layers;
}

SelfAttentionSpec attention_from(const JsonObject& keys, const HybridKind& kind,
                                 ModelConfig& config) {
  SelfAttentionSpec mixer =
      read_attention(keys, config.spec, {.head_dim = 256, .num_kv_heads = kind.default_kv_heads});
  mixer.rotary = read_rotary(keys, mixer.attention.key_dim,
                             {.partial_factor = 0.25, .axes = kind.axes}, config);
  mixer.qk_norm = mixer.output_gate = true;
  mixer.qkv_bias = mixer.output_bias = keys.get<bool>("attention_bias", false);
  if (!keys.get<bool>("attn_output_gate", true)) {
    keys.fail(
        "attn_output_gate: false: the attention of this family always has a gate. Remove the key, "
        "or take a model that has one");
  }
  return mixer;
}

GatedDeltaNetSpec gated_delta_net_from(const JsonObject& keys, const HybridKind& kind,
                                       int64_t hidden_size) {
  GatedDeltaNetSpec net;
  net.projections = kind.projections;
  net.num_key_heads = bounded(keys, "linear_num_key_heads", 16, kMostIndexed);
  net.num_value_heads = bounded(keys, "linear_num_value_heads", 32, kMostIndexed);
  net.key_dim = bounded(keys, "linear_key_head_dim", 128, kMostIndexed);
  net.value_dim = bounded(keys, "linear_value_head_dim", 128, kMostIndexed);
  net.conv_width = bounded(keys, "linear_conv_kernel_dim", 4, 64);
  if (net.num_value_heads % net.num_key_heads != 0) {
    keys.fail(fmt::format("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                          net.num_value_heads, net.num_key_heads));
  }
  bounded_product({net.num_value_heads, net.value_dim, hidden_size}, "a linear attention");
  bounded_product({2, net.num_key_heads, net.key_dim, hidden_size}, "a linear attention");
  return net;
}

/// Returns the pattern's layers: true for those with the recurrence.
std::vector<bool> recurrent_layers(const JsonObject& keys, int64_t num_layers) {
  if (!keys.has("layer_types")) {
    return all_but_each(bounded(keys, "full_attention_interval", 4, kMostOfPattern));
  }
  const std::vector<bool> layers = layers_of_types(keys, num_layers);
  if (std::ranges::count(layers, true) == num_layers) {
    keys.fail(fmt::format(
        "layer_types has no {}; a model without softmax attention is not supported", kSoftmax));
  }
  return shortest_pattern(layers);
}

}  // namespace

void read_hybrid_layers(const JsonObject& keys, const HybridKind& kind,
                        const FeedForwardSpec& feed_forward, ModelConfig& config) {
  config.spec.norm_kind = NormKind::kOnePlusWeight;
  const SelfAttentionSpec softmax = attention_from(keys, kind, config);
  const GatedDeltaNetSpec net = gated_delta_net_from(keys, kind, config.spec.hidden_size);
  config.spec.pattern = layers_where(recurrent_layers(keys, config.spec.num_layers),
                                     {net, feed_forward}, {softmax, feed_forward});
}

}  // namespace longspan
