// Layers that are not all alike, as the pattern that repeats (ModelSpec::pattern). No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// `these` where `which` says so, and `others` elsewhere.
std::vector<LayerSpec> layers_where(const std::vector<bool>& which, const LayerSpec& these,
                                    const LayerSpec& others);

/// All of n but the last.
std::vector<bool> all_but_each(int64_t n);

/// The pattern, with this feed-forward in layer i for which `which` [i % which.size()] is true; no
/// longer than the model's layers are many.
std::vector<LayerSpec> with_feed_forward(const std::vector<LayerSpec>& pattern,
                                         const FeedForwardSpec& feed_forward,
                                         const std::vector<bool>& which, int64_t num_layers);

}  // namespace longspan
