// Consecutive shares of a row. No torch.
#pragma once

#include "longspan/rows/token_order.h"

namespace longspan {

/// Cuts the tokens of `order` into equal consecutive parts, one part per rank. Returns the part of
/// `rank`.
TokenOrder share_of(TokenOrder order, int rank, int num_ranks);

/// Returns one rank's part of the row in row order, in equal consecutive parts. The row is padded
/// at the end, so that each rank's part is a multiple of `multiple`.
TokenOrder consecutive_order(const Packing& packing, int64_t multiple, int rank, int num_ranks);

}  // namespace longspan
