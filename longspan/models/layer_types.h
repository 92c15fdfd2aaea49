// Keys of config.json that select the layers with a sliding window. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/input/json_object.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Reads layer_types: true for sliding_attention, false for full_attention; nullopt if the key is
/// missing. Throws UserError unless it names one of the two for each layer.
std::optional<std::vector<bool>> layers_with_window(const JsonObject& keys, int64_t num_layers);

/// Returns the pattern of Qwen2's and dense Qwen3's layers. With use_sliding_window, the layers
/// that layer_types names have the window sliding_window, or without that key all layers from
/// max_window_layers on (`default_first`: its default). Throws UserError if layer_types asks for a
/// window and there is none.
std::vector<LayerSpec> with_qwen_windows(const JsonObject& keys, const SelfAttentionSpec& mixer,
                                         const FeedForwardSpec& feed_forward, int64_t num_layers,
                                         int64_t default_first = 28);

}  // namespace longspan
