// The gated delta rule on a GPU (kernels/gated_delta_rule.h): the parts of a row that it computes
// at a time, and their memory. No torch.
#pragma once

#include <cstdint>

#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// Temporary bytes of the rule by kernels (kernels/delta_part.cpp).
struct RuleMemory {
  int64_t chunk_bytes = 0;    ///< of a part's backward, for each chunk
  int64_t forward_bytes = 0;  ///< of a part's forward, for each chunk
  int64_t token_bytes = 0;    ///< of a tensor [tokens, value heads, key_dim], for each token

  bool operator==(const RuleMemory&) const = default;
};

/// `element_bytes`: of queries, keys and values.
RuleMemory rule_memory(const RecurrenceSpec& recurrence, int64_t element_bytes);

/// Temporary bytes of a part's backward, at most, in rows that are short. The number of launches
/// grows with the number of parts.
inline constexpr int64_t kComposedRuleBytes = int64_t{2} << 30;
/// In long rows: as many bytes as so many tensors [tokens, value heads, key_dim]. A layer's
/// backward works with more before and after the rule's.
inline constexpr int64_t kComposedRuleTensors = 4;
/// Chunks of a part, at least.
inline constexpr int64_t kLeastChunksOfPart = 8;

/// Returns the chunks of the largest part of a row. Parts are of equal size.
int64_t chunks_of_part(int64_t num_tokens, const RuleMemory& memory);

}  // namespace longspan
