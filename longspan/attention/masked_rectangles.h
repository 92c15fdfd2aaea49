// Masked rectangles: the pairs of queries and keys that the forks of a row (data/packing.h) take
// out of attention. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/data/packing.h"

namespace longspan {

/// A masked rectangle: queries [q_begin, q_end) do not see keys [k_begin, k_end).
struct MaskedRectangle {
  int64_t q_begin, q_end, k_begin, k_end;
  bool operator==(const MaskedRectangle&) const = default;
};

/// How many tokens of a selection of the row come before `token` of the row. A selection in the
/// row's order turns a masked rectangle of the row into a rectangle of its own tokens by this.
using TokensBefore = std::function<int64_t(int64_t token)>;

/// One masked rectangle for each fork, in the order of the row. Queries and keys are selections of
/// the row's tokens, and the rectangles count in these. Leaves out empty ones.
std::vector<MaskedRectangle> masked_rectangles_of(const Packing& packing,
                                                  const TokensBefore& queries_before,
                                                  const TokensBefore& keys_before);

/// The blocks without the masked pairs. Queries of a block that lie in a masked rectangle become a
/// block of the keys before it and one of the keys after it, so that a query may then be in two
/// blocks. The rectangles share no queries and are sorted by them.
std::vector<Block> without_masked_pairs(const std::vector<Block>& blocks,
                                        const std::vector<MaskedRectangle>& masked);

}  // namespace longspan
