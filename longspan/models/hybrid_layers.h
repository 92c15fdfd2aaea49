// The keys of config.json of models that alternate GatedDeltaNet and softmax attention. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// What sets the families of such models apart.
struct HybridKind {
  int64_t default_kv_heads;  ///< num_key_value_heads where the file has none
  GatedDeltaNetSpec::Projections projections;
};

/// Reads what their softmax attention has (a gate, norms of heads that multiply by one plus their
/// weight), linear_* and layer_types (or full_attention_interval), as Qwen3-Next and Qwen3.5 have
/// them and with their defaults, into config.spec. All layers have this feed-forward.
void read_hybrid_layers(const JsonObject& keys, const HybridKind& kind,
                        const FeedForwardSpec& feed_forward, ModelConfig& config);

}  // namespace longspan
