// GatedDeltaNet (arXiv 2412.06464) of Qwen's hybrid models, as data. layers/gated_delta_net.h has
// the computation. No torch.
#pragma once

#include <optional>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// A token mixer: out(norm(rule(silu(conv(qkv(x))), gates of a(x), b(x))) * silu(z(x))).
struct GatedDeltaNetSpec : RecurrenceSpec {
  /// The storage of the matrices that project the layer's input, in the model's files.
  enum class Projections {
    kApart,       ///< qkv (all queries, all keys, all values), z, b, a: Qwen3.5
    kByKeyHeads,  ///< qkvz and ba, grouped by key head: Qwen3-Next
  };
  Projections projections = Projections::kApart;

  bool operator==(const GatedDeltaNetSpec&) const = default;
};

void list_parameters(const GatedDeltaNetSpec& mixer, LayerParameters& list);
inline const AttentionSpec* attention_in(const GatedDeltaNetSpec& /*mixer*/) { return nullptr; }
inline bool mixes_by_attention_alone(const GatedDeltaNetSpec& /*mixer*/) { return false; }
inline std::optional<RotaryKind> rotary_in(const GatedDeltaNetSpec& /*mixer*/) {
  return std::nullopt;
}
inline std::optional<RecurrenceSpec> recurrence_in(const GatedDeltaNetSpec& mixer) { return mixer; }
TokenMixerCost cost_of(const GatedDeltaNetSpec& mixer, int64_t hidden_size);

}  // namespace longspan
