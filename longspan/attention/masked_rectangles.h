// Masked rectangles: the pairs of queries and keys that branches (rows/packing.h) hide from
// attention.
// No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Queries [q_begin, q_end) do not see keys [k_begin, k_end).
struct MaskedRectangle {
  int64_t q_begin, q_end, k_begin, k_end;
  bool operator==(const MaskedRectangle&) const = default;
};

/// Returns the number of tokens of a selection that precede `token` of the row. A selection is some
/// tokens of a row, in the row's order. This function serves to convert the bounds of a masked
/// rectangle from the row to the selection.
using TokensBefore = std::function<int64_t(int64_t token)>;

/// The masked rectangles of a row.
struct MaskedRectangles {
  /// One element for each depth of branches, without the root. Rectangles of one depth are sorted
  /// by queries, and no query is in two rectangles.
  std::vector<std::vector<MaskedRectangle>> levels;
  /// Whether queries of several branches share a block where they see the same keys. False if every
  /// tree is a pair of branches, which need no such block.
  bool joins = false;
};

/// Returns a masked rectangle for each branch except its parent's first branch: the tokens of the
/// branch and of its descendants do not see the parent's earlier branches. Queries and keys are
/// selections of the row's tokens. The bounds of the rectangles are indices in these selections.
/// Empty rectangles are omitted.
MaskedRectangles masked_rectangles_of(const Packing& packing, const TokensBefore& queries_before,
                                      const TokensBefore& keys_before);

/// Returns the blocks without the masked pairs. If a masked rectangle cuts a block, the rectangle's
/// queries get two blocks: a block of the keys before the rectangle, and a block of the keys after
/// the rectangle. A query of depth d may therefore be in d + 1 blocks.
std::vector<Block> without_masked_pairs(const std::vector<Block>& blocks,
                                        const MaskedRectangles& masked);

}  // namespace longspan
