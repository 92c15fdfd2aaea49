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

/// Appends a run, and joins it to the last one where it continues that.
void add_run(Positions& positions, const PositionRun& run);

/// Turns places in the row into positions as a window counts them: the second branch of a forked
/// document continues its prompt. Only positions of the same document may be compared.
Positions window_positions(const Positions& places, const Packing& packing);
/// The same for the tokens [begin, begin + length) of the row.
Positions window_positions(int64_t begin, int64_t length, const Packing& packing);

/// Returns the blocks cut to a sliding window: a query sees keys less than `window` positions
/// before its own, as transformers' sliding_window. The cut is exact. Blocks inside the window stay
/// as they are. Others become parts with evenly spaced positions and with lower ends. Without a
/// window, returns `blocks`. `blocks` have no lower ends; in each block, keys are in the order of
/// their positions.
std::vector<Block> within_window(const std::vector<Block>& blocks, std::optional<int64_t> window,
                                 const Positions& queries, const Positions& keys);

/// Returns causal_blocks() within a window.
std::vector<Block> causal_blocks(const Packing& packing, std::optional<int64_t> window);

/// The first token of the row that any of the queries [begin, end) sees; `begin` where the range is
/// empty.
int64_t first_key_seen(int64_t begin, int64_t end, const Packing& packing,
                       std::optional<int64_t> window);

}  // namespace longspan
