// Blocks of attention in which a query sees the last keys only. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/attention/block.h"

namespace longspan {

/// Where a token of a selection is in the row; later tokens of the selection are later in the row.
using PlaceOf = std::function<int64_t(int64_t token)>;

/// The blocks without most of what lies outside a sliding window, where a query sees the keys less
/// than `window` places before its own. Every pair inside the window is left once, and no pair that
/// is 2 `window` places apart. A kernel masks the rest. Queries and keys of the blocks are tokens
/// of selections of the row. Blocks that lie inside are left as they are; others become strips
/// whose queries are less than `window` places apart.
std::vector<Block> within_window(const std::vector<Block>& blocks, int64_t window,
                                 const PlaceOf& query_place, const PlaceOf& key_place);

}  // namespace longspan
