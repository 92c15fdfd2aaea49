#include "longspan/models/hybrid_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/input/numbers.h"

namespace longspan {
namespace {

constexpr const char *kRecurrent = "linear_attention", *kSoftmax = "full_attention";
/// Layers that a pattern may have: none is made of a number alone.
constexpr int64_t kMostOfPattern = 4096;

int64_t positive(const JsonObject& keys, const char* name, int64_t fallback, int64_t most) {
  const auto value = keys.get<int64_t>(name, fallback);
  if (value <= 0 || value > most) {
    keys.fail(fmt::format("{} is {}, it must be positive and at most {}", name, value, most));
  }
  return value;
}

std::vector<bool> layers_of_types(const JsonObject& keys, const ModelConfig& config) {
  const nlohmann::json& types = keys.value("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != config.num_layers) {
    keys.fail(
        fmt::format("layer_types must name the type of each of {} layers", config.num_layers));
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

/// Its first part, of which all of it is made by repetition.
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

}  // namespace

void read_hybrid_layers(const JsonObject& keys, const HybridKind& kind, ModelConfig& config) {
  // transformers' defaults for these families; null is another.
  if (!keys.json().contains("head_dim")) config.head_dim = 256;
  if (!keys.json().contains("num_key_value_heads")) config.num_kv_heads = kind.default_kv_heads;
  if (config.num_heads % config.num_kv_heads != 0) {
    keys.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                          config.num_heads, config.num_kv_heads));
  }
  config.qk_norm = config.output_gate = true;
  config.norm_kind = NormKind::kOnePlusWeight;
  config.qkv_bias = config.output_bias = keys.get<bool>("attention_bias", false);
  if (!keys.get<bool>("attn_output_gate", true)) {
    keys.fail("attn_output_gate: false: the attention of this family always has a gate");
  }
  GatedDeltaNetSpec net;
  net.projections = kind.projections;
  net.num_key_heads = positive(keys, "linear_num_key_heads", 16, kMostIndexed);
  net.num_value_heads = positive(keys, "linear_num_value_heads", 32, kMostIndexed);
  net.key_dim = positive(keys, "linear_key_head_dim", 128, kMostIndexed);
  net.value_dim = positive(keys, "linear_value_head_dim", 128, kMostIndexed);
  net.conv_width = positive(keys, "linear_conv_kernel_dim", 4, 64);
  if (net.num_value_heads % net.num_key_heads != 0) {
    keys.fail(fmt::format("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                          net.num_value_heads, net.num_key_heads));
  }
  counted_product({net.num_value_heads, net.value_dim, config.hidden_size}, "a linear attention");
  counted_product({2, net.num_key_heads, net.key_dim, config.hidden_size}, "a linear attention");
  config.gated_delta_net = net;
  if (keys.has("layer_types")) {
    const std::vector<bool> layers = layers_of_types(keys, config);
    if (std::ranges::count(layers, true) == config.num_layers) {
      keys.fail(
          fmt::format("layer_types has no {}; a model without softmax attention is not "
                      "supported",
                      kSoftmax));
    }
    config.recurrent_layers = shortest_pattern(layers);
    return;
  }
  const int64_t interval = positive(keys, "full_attention_interval", 4, kMostOfPattern);
  config.recurrent_layers.assign(interval, true);
  config.recurrent_layers.back() = false;
}

}  // namespace longspan
