// GatedDeltaNet (arXiv 2412.06464) as Qwen's hybrids have it, as data. No torch. What it computes
// is in layers/gated_delta_net.h.
#pragma once

#include <optional>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// A token mixer: out(norm(rule(silu(conv(qkv(x))), gates of a(x), b(x))) * silu(z(x))).
struct GatedDeltaNetSpec {
  int64_t num_key_heads = 0;    ///< of queries and of keys
  int64_t num_value_heads = 0;  ///< a multiple of num_key_heads
  int64_t key_dim = 0;          ///< numbers in a query's and a key's head
  int64_t value_dim = 0;        ///< numbers in a value's and an output's head
  int64_t conv_width = 0;       ///< tokens that the convolution sees
  /// How the files hold the matrices before the convolution.
  enum class Projections {
    kApart,       ///< qkv (all queries, all keys, all values), z, b, a: Qwen3.5
    kByKeyHeads,  ///< qkvz and ba, the rows of a key head and what goes with it together:
                  ///< Qwen3-Next
  };
  Projections projections = Projections::kApart;

  int64_t num_queries() const { return num_key_heads * key_dim; }     ///< numbers; as many of keys
  int64_t num_values() const { return num_value_heads * value_dim; }  ///< numbers
  /// What the convolution goes over: queries, keys and values.
  int64_t num_channels() const { return 2 * num_queries() + num_values(); }

  bool operator==(const GatedDeltaNetSpec&) const = default;
};

void list_parameters(const GatedDeltaNetSpec& mixer, LayerParameters& list);
inline const AttentionSpec* attention_in(const GatedDeltaNetSpec& /*mixer*/) { return nullptr; }
inline bool mixes_by_attention_alone(const GatedDeltaNetSpec& /*mixer*/) { return false; }
inline std::optional<RotaryKind> rotary_in(const GatedDeltaNetSpec& /*mixer*/) {
  return std::nullopt;
}
inline std::optional<RecurrenceSpec> recurrence_in(const GatedDeltaNetSpec& mixer) {
  return RecurrenceSpec{.num_key_heads = mixer.num_key_heads,
                        .num_value_heads = mixer.num_value_heads,
                        .key_dim = mixer.key_dim,
                        .value_dim = mixer.value_dim,
                        .conv_width = mixer.conv_width};
}
TokenMixerCost cost_of(const GatedDeltaNetSpec& mixer, int64_t hidden_size);

}  // namespace longspan
