// Sliding windows: blocks of attention in which a query sees the last keys only. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/data/packing.h"

namespace longspan {

/// Tokens [begin, begin + length) of a selection of a row, of which the i-th is at position
/// position + i step of the row, step > 0.
struct PositionRun {
  int64_t begin, length, position, step = 1;
  bool operator==(const PositionRun&) const = default;
};

/// Where the tokens of a selection are in the row: runs, one behind the other.
using Positions = std::vector<PositionRun>;

/// Adds a run, to the last one where it goes on from it.
void add_run(Positions& positions, const PositionRun& run);

/// Places in the row -> positions as a window counts them: the second branch of a forked document
/// goes on from its prompt. What is compared is positions of one document.
Positions window_positions(const Positions& places, const Packing& packing);
/// Of the tokens [begin, begin + length) of the row.
Positions window_positions(int64_t begin, int64_t length, const Packing& packing);

/// The blocks without what lies outside a sliding window, where a query sees the keys less than
/// `window` positions before its own: transformers' sliding_window. Exact: what is left is inside.
/// Blocks that lie inside are left as they are; others become parts of even positions, with lower
/// ends. No window: the blocks. They have no lower ends; in each, keys come in the order of their
/// positions.
std::vector<Block> within_window(const std::vector<Block>& blocks, std::optional<int64_t> window,
                                 const Positions& queries, const Positions& keys);

/// causal_blocks() within a window.
std::vector<Block> causal_blocks(const Packing& packing, std::optional<int64_t> window);

/// The first token of the row that one of the queries [begin, end) sees; `begin` where that is
/// empty.
int64_t first_key_seen(int64_t begin, int64_t end, const Packing& packing,
                       std::optional<int64_t> window);

}  // namespace longspan
