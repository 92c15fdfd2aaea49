// The key layer_types of config.json, in families some of whose layers have a sliding window. No
// torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/input/json_object.h"

namespace longspan {

/// Which layers have the window (sliding_attention, of full_attention and that); none where the key
/// is not there. Throws UserError unless it names the type of each layer.
std::optional<std::vector<bool>> layers_with_window(const JsonObject& keys, int64_t num_layers);

}  // namespace longspan
