// The keys of config.json of models that alternate GatedDeltaNet and softmax attention. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Reads linear_* and layer_types (or full_attention_interval), as Qwen3-Next and Qwen3.5 have them
/// and with their defaults, into config.gated_delta_net and config.recurrent_layers.
void read_hybrid_layers(const JsonObject& keys, ModelConfig& config);

}  // namespace longspan
