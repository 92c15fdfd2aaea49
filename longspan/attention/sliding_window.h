// Sliding windows as blocks of attention. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Tokens [begin, begin + length) of a selection of a row. The i-th is at position position + i
/// step of the row; step > 0.
struct PositionRun {
  int64_t begin, length, position, step = 1;
  bool operator==(const PositionRun&) const = default;
};

/// Positions in the row of a selection's tokens: consecutive runs.
using Positions = std::vector<PositionRun>;

/// Appends a run. Merges it with the last run if it continues that run.
void add_run(Positions& positions, const PositionRun& run);

/// Converts places in the row to the positions by which a window measures distance: positions in
/// the second branch of a forked document continue those of the prompt. Only positions of the same
/// document may be compared.
Positions window_positions(const Positions& places, const Packing& packing);
/// The same for the tokens [begin, begin + length) of the row.
Positions window_positions(int64_t begin, int64_t length, const Packing& packing);

/// Returns the blocks cut to a sliding window: a query sees keys less than `window` positions
/// before its own, as transformers' sliding_window. The cut is exact. Blocks inside the window are
/// returned unchanged. Other blocks are split into parts whose positions are evenly spaced, and
/// each part gets a lower end (Block::lower). Without a window, returns `blocks`. The input blocks
/// have no lower ends; in each of them, keys are in the order of their positions.
std::vector<Block> within_window(const std::vector<Block>& blocks, std::optional<int64_t> window,
                                 const Positions& queries, const Positions& keys);

/// Returns causal_blocks() within a window, and the blocks of two-way spans (two_way_blocks.h).
std::vector<Block> causal_blocks(const Packing& packing, std::optional<int64_t> window);

/// The first token of the row that any of the queries [begin, end) sees; `begin` where the range is
/// empty.
int64_t first_key_seen(int64_t begin, int64_t end, const Packing& packing,
                       std::optional<int64_t> window);

}  // namespace longspan
