#include "longspan/models/layer_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/models/layer_keys.h"
#include "longspan/models/layer_pattern.h"

namespace longspan {
namespace {

constexpr int64_t kDefaultWindow = 4096;  // transformers' default
/// A limit, because a list of this length is made before any weights are read.
constexpr int64_t kMostLayers = 1024;

/// A single entry if all layers are alike.
std::vector<bool> windowed_by_qwen(const JsonObject& keys, bool has_window, int64_t num_layers,
                                   int64_t default_first) {
  if (const auto named = layers_with_window(keys, num_layers)) {
    const bool any = std::ranges::find(*named, true) != named->end();
    if (any && !has_window) {
      keys.fail(
          "layer_types has sliding_attention, but there is no window. Set use_sliding_window to "
          "true and sliding_window to its tokens, or all of layer_types to full_attention");
    }
    return any ? *named : std::vector<bool>{false};
  }
  const auto first = keys.get<int64_t>("max_window_layers", default_first);
  if (!has_window || first >= num_layers) return {false};
  if (first <= 0) return {true};
  if (num_layers > kMostLayers) {
    keys.fail(
        fmt::format("num_hidden_layers is {}, and max_window_layers {}: at most {} may differ",
                    num_layers, first, kMostLayers));
  }
  std::vector<bool> which(static_cast<size_t>(num_layers), true);
  std::fill_n(which.begin(), first, false);
  return which;
}

}  // namespace

std::optional<std::vector<bool>> layers_with_window(const JsonObject& keys, int64_t num_layers) {
  if (!keys.has("layer_types")) return std::nullopt;
  const nlohmann::json& types = keys.value("layer_types");
  if (!types.is_array() || std::ssize(types) != num_layers) {
    keys.fail(
        fmt::format("layer_types must be a list of one kind for each of {} layers", num_layers));
  }
  std::vector<bool> windowed;
  for (const nlohmann::json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (name != "sliding_attention" && name != "full_attention") {
      keys.fail(fmt::format(
          "layer_types has {}; sliding_attention and full_attention are supported", type.dump()));
    }
    windowed.push_back(name == "sliding_attention");
  }
  return windowed;
}

std::vector<LayerSpec> with_qwen_windows(const JsonObject& keys, const SelfAttentionSpec& mixer,
                                         const FeedForwardSpec& feed_forward, int64_t num_layers,
                                         int64_t default_first) {
  SelfAttentionSpec windowed = mixer;
  if (keys.get<bool>("use_sliding_window", false)) {
    windowed.attention.window = read_window(keys, kDefaultWindow);
  }
  return layers_where(
      windowed_by_qwen(keys, windowed.attention.window.has_value(), num_layers, default_first),
      {.mixer = windowed, .feed_forward = feed_forward},
      {.mixer = mixer, .feed_forward = feed_forward});
}

}  // namespace longspan
