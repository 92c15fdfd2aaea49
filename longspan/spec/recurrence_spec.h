// What a token mixer is that goes over the tokens of a row one behind the other: what strategies,
// plan and traffic go by. No torch.
#pragma once

#include <cstdint>

#include "longspan/spec/layer_cost.h"

namespace longspan {

/// A convolution over a few tokens, and then a rule that changes a state [key_dim, value_dim] of
/// each value head by one token after the other.
struct RecurrenceSpec {
  int64_t num_key_heads = 0;    ///< of queries and of keys
  int64_t num_value_heads = 0;  ///< a multiple of num_key_heads
  int64_t key_dim = 0;          ///< numbers in a query's and a key's head
  int64_t value_dim = 0;        ///< numbers in a value's and an output's head
  int64_t conv_width = 0;       ///< tokens that the convolution sees

  int64_t num_queries() const { return num_key_heads * key_dim; }     ///< numbers; as many of keys
  int64_t num_values() const { return num_value_heads * value_dim; }  ///< numbers
  /// What the convolution goes over: queries, keys and values.
  int64_t num_channels() const { return 2 * num_queries() + num_values(); }

  bool operator==(const RecurrenceSpec&) const = default;
};

/// Tokens that the rule goes over as one chunk, and tokens of a segment: the state before each is
/// saved for the backward (kernels/gated_delta_rule.h).
inline constexpr int64_t kRuleChunk = 64, kRuleSegment = 8 * kRuleChunk;

/// Bytes that the rule's composed form (kernels/gated_delta_rule.h) works with while it computes a
/// segment's backward, whatever the row: of each value head 8 matrices of a segment's tokens by a
/// chunk's, 5 of queries and keys, 6 of values, and 3 states of each chunk; of each key head 4 of
/// queries and keys. All in fp32.
inline int64_t composed_rule_bytes(const RecurrenceSpec& recurrence) {
  const int64_t K = recurrence.key_dim, V = recurrence.value_dim;
  constexpr int64_t kChunks = kRuleSegment / kRuleChunk;
  const int64_t of_value_head =
      kRuleSegment * (8 * kRuleChunk + 5 * K + 6 * V) + 3 * kChunks * K * V;
  const int64_t of_key_head = kRuleSegment * 4 * K;
  return 4 * (recurrence.num_value_heads * of_value_head + recurrence.num_key_heads * of_key_head);
}

/// Of the rule, for a token and a value head whose states have `width` columns: value_dim, or more
/// where they carry more than values. Gemms with the state, within a chunk, and to the next state;
/// the backward has three times as many.
inline FlopCost rule_flops_of(const RecurrenceSpec& recurrence, int64_t width) {
  const int64_t K = recurrence.key_dim;
  const int64_t forward = 2 * (3 * K * width + 2 * kRuleChunk * width + kRuleChunk * K);
  return {forward, 3 * forward};
}

}  // namespace longspan
