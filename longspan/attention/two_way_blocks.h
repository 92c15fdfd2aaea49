// Two-way spans (rows/packing.h) as blocks: queries with later keys of their span. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Appends the blocks that two-way spans add to causal attention: each query of a span sees the
/// later keys of the span, also in layers with a sliding window (as in transformers' Gemma 3, which
/// hides a key of the same picture only if the key is before the window). `queries`, `keys`: places
/// in the row of selections of its tokens. The blocks count tokens of these selections and have
/// lower ends.
void add_two_way_blocks(std::vector<Block>& blocks, const Packing& packing,
                        const Positions& queries, const Positions& keys);

/// Returns the end of the keys that the tokens before `end` see, for tokens [begin, end) of the row
/// with begin < end: the end of the two-way span that `end` cuts, else `end`.
int64_t end_of_keys_seen(int64_t begin, int64_t end, const Packing& packing);

}  // namespace longspan
