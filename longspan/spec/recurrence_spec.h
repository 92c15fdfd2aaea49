// Description of recurrent token mixers, for methods of sequence parallelism, plan and estimates of
// traffic. No torch.
#pragma once

#include <cstdint>

#include "longspan/spec/layer_cost.h"

namespace longspan {

/// A convolution over a few tokens, then a rule that updates a state [key_dim, value_dim] of each
/// value head, token by token.
struct RecurrenceSpec {
  int64_t num_key_heads = 0;    ///< heads of queries and of keys
  int64_t num_value_heads = 0;  ///< a multiple of num_key_heads
  int64_t key_dim = 0;          ///< elements of a query's or key's head
  int64_t value_dim = 0;        ///< elements of a value's or output's head
  int64_t conv_width = 0;       ///< tokens that the convolution sees

  int64_t num_queries() const { return num_key_heads * key_dim; }     ///< elements; also of keys
  int64_t num_values() const { return num_value_heads * value_dim; }  ///< elements
  /// Channels of the convolution: queries, keys and values.
  int64_t num_channels() const { return 2 * num_queries() + num_values(); }

  bool operator==(const RecurrenceSpec&) const = default;
};

/// Tokens in a chunk of the rule (kRuleChunk), and in a CPU segment of 8 chunks (kRuleSegment). The
/// state before each segment is saved for the backward (kernels/gated_delta_rule.h).
inline constexpr int64_t kRuleChunk = 64, kRuleSegment = 8 * kRuleChunk;

/// Returns the FLOP of the rule per token and value head. Counts the gemms with the state, the
/// gemms within a chunk, and the gemms that compute the next state. The backward has three times
/// the forward's FLOP. `width`: columns of a state; value_dim, or more if a state also contains the
/// linear map of a slice of the row.
inline FlopCost rule_flops_of(const RecurrenceSpec& recurrence, int64_t width) {
  const int64_t K = recurrence.key_dim;
  const int64_t forward = 2 * (3 * K * width + 2 * kRuleChunk * width + kRuleChunk * K);
  return {forward, 3 * forward};
}

}  // namespace longspan
