// Keys of config.json that select the layers with a sliding window. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/input/json_object.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Reads layer_types: true for sliding_attention, false for full_attention; nullopt if the key is
/// missing. Throws UserError unless layer_types has one of these two words for each layer.
std::optional<std::vector<bool>> layers_with_window(const JsonObject& keys, int64_t num_layers);

/// Returns the pattern of Qwen2's and dense Qwen3's layers. With use_sliding_window, the
/// sliding_attention layers of layer_types have the window sliding_window. If layer_types is
/// missing, all layers from max_window_layers on have the window (`default_first`: the default of
/// max_window_layers). Throws UserError if layer_types asks for a window and no window is set.
std::vector<LayerSpec> with_qwen_windows(const JsonObject& keys, const SelfAttentionSpec& mixer,
                                         const FeedForwardSpec& feed_forward, int64_t num_layers,
                                         int64_t default_first = 28);

}  // namespace longspan
