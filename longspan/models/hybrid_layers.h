// Keys of config.json of models that alternate GatedDeltaNet and softmax attention. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Differences between the families of hybrid models.
struct HybridKind {
  int64_t default_kv_heads;  ///< default of num_key_value_heads
  GatedDeltaNetSpec::Projections projections;
  std::optional<RotaryAxes> axes = {};  ///< axes of the positions of pictures
};

/// Qwen3.5's axes.
inline constexpr RotaryAxes kQwen3_5Axes{.sections = {11, 11, 10}, .interleaved = true};

/// Reads the layers of Qwen3-Next and Qwen3.5 into config.spec, with these families' defaults:
/// softmax attention with an output gate and head norms that multiply by 1 + weight, the linear_*
/// keys, and layer_types or full_attention_interval. All layers get `feed_forward`.
void read_hybrid_layers(const JsonObject& keys, const HybridKind& kind,
                        const FeedForwardSpec& feed_forward, ModelConfig& config);

}  // namespace longspan
