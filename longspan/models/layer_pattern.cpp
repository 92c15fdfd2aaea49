#include "longspan/models/layer_pattern.h"

#include <algorithm>
#include <numeric>

namespace longspan {

std::vector<LayerSpec> layers_where(const std::vector<bool>& which, const LayerSpec& these,
                                    const LayerSpec& others) {
  std::vector<LayerSpec> layers;
  layers.reserve(which.size());
  for (const bool is_these : which) layers.push_back(is_these ? these : others);
  return layers;
}

std::vector<bool> all_but_each(int64_t n) {
  std::vector<bool> which(n, true);
  which.back() = false;
  return which;
}

std::vector<LayerSpec> with_feed_forward(const std::vector<LayerSpec>& pattern,
                                         const FeedForwardSpec& feed_forward,
                                         const std::vector<bool>& which, int64_t num_layers) {
  // A hostile file can make both patterns long.
  const size_t length =
      std::min<size_t>(std::lcm(pattern.size(), which.size()), static_cast<size_t>(num_layers));
  std::vector<LayerSpec> layers;
  for (size_t i = 0; i < length; ++i) {
    layers.push_back(pattern[i % pattern.size()]);
    if (which[i % which.size()]) layers.back().feed_forward = feed_forward;
  }
  return layers;
}

}  // namespace longspan
