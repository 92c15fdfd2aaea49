// Sliding windows as blocks of attention. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Tokens [begin, begin + length) of a selection (some tokens of a row, in order). Token begin + i
/// of the selection is at position `position` + i * step of the row; step > 0.
struct PositionRun {
  int64_t begin, length, position, step = 1;
  bool operator==(const PositionRun&) const = default;
};

/// The positions in the row of a selection's tokens, as consecutive runs.
using Positions = std::vector<PositionRun>;

/// Appends a run. Merges the run with the last run if the run continues the last run.
void add_run(Positions& positions, const PositionRun& run);

/// Converts places in the row to positions from which a window measures distance. In a branch of a
/// document, positions continue the positions of the branch's parent. Only positions of the same
/// document may be compared.
Positions window_positions(const Positions& places, const Packing& packing);
/// Returns the window positions of the tokens [begin, begin + length) of the row.
Positions window_positions(int64_t begin, int64_t length, const Packing& packing);

/// Returns the blocks cut to a sliding window. A query sees keys less than `window` positions
/// before the query's position, as with transformers' sliding_window. The cut is exact. Blocks
/// inside the window are returned unchanged. Other blocks are split into parts whose positions are
/// evenly spaced, and each part gets a lower end (Block::lower). Without a window, returns
/// `blocks`. The input blocks must have no lower ends. The keys of each input block must be in the
/// order of their positions.
std::vector<Block> within_window(const std::vector<Block>& blocks, std::optional<int64_t> window,
                                 const Positions& queries, const Positions& keys);

/// Returns causal_blocks() within a window, and the blocks of two-way spans (two_way_blocks.h).
std::vector<Block> causal_blocks(const Packing& packing, std::optional<int64_t> window);

/// Returns the first token of the row that any of the queries [begin, end) sees; `begin` if the
/// range is empty.
int64_t first_key_seen(int64_t begin, int64_t end, const Packing& packing,
                       std::optional<int64_t> window);

}  // namespace longspan
