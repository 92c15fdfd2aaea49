// Patterns with layers of several kinds (ModelSpec::pattern). No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// Returns one layer per element of `which`: `these` for true, `others` for false.
std::vector<LayerSpec> layers_where(const std::vector<bool>& which, const LayerSpec& these,
                                    const LayerSpec& others);

/// Returns n flags: false for the last flag, true for all others.
std::vector<bool> all_but_each(int64_t n);

/// Returns the pattern with `feed_forward` in every layer i where which[i % which.size()] is true.
/// The result has at most `num_layers` layers.
std::vector<LayerSpec> with_feed_forward(const std::vector<LayerSpec>& pattern,
                                         const FeedForwardSpec& feed_forward,
                                         const std::vector<bool>& which, int64_t num_layers);

}  // namespace longspan
