// Keys of config.json that say which layers have a sliding window, in families where some have. No
// torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/input/json_object.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Which layers have the window (sliding_attention, of full_attention and that); none where the key
/// is not there. Throws UserError unless it names the type of each layer.
std::optional<std::vector<bool>> layers_with_window(const JsonObject& keys, int64_t num_layers);

/// The pattern of Qwen2's and dense Qwen3's layers, of this mixer and feed-forward: where
/// use_sliding_window says so, with the window sliding_window in the layers that layer_types names,
/// or, in a file without that key, in all from max_window_layers on. Throws UserError for
/// layer_types with a window that is not there.
std::vector<LayerSpec> with_qwen_windows(const JsonObject& keys, const SelfAttentionSpec& mixer,
                                         const FeedForwardSpec& feed_forward, int64_t num_layers);

}  // namespace longspan
