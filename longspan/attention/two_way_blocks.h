// Two-way spans (rows/packing.h) as blocks: queries with later keys of their span. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Appends the blocks that two-way spans add to causal attention: each query of a span sees the
/// later keys of the span. The blocks are the same in layers with a sliding window. (transformers'
/// Gemma 3 hides a key of the same picture only if the key is before the window.) `queries`,
/// `keys`: two selections of the row's tokens, by their places in the row. Indices in the blocks
/// are indices in these selections. The blocks have lower ends.
void add_two_way_blocks(std::vector<Block>& blocks, const Packing& packing,
                        const Positions& queries, const Positions& keys);

/// Returns the end of the keys that the tokens [begin, end) of the row see, for begin < end. If
/// `end` is inside a two-way span, the result is the end of the span, otherwise `end`.
int64_t end_of_keys_seen(int64_t begin, int64_t end, const Packing& packing);

}  // namespace longspan
