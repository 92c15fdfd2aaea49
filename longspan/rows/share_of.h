// Consecutive shares of a row. No torch.
#pragma once

#include "longspan/rows/token_order.h"

namespace longspan {

/// Returns one rank's part of the tokens in `order`, cut in equal consecutive parts.
TokenOrder share_of(TokenOrder order, int rank, int num_ranks);

/// Returns the row in its order, padded at its tail so that each rank's part is a multiple of
/// `multiple`.
TokenOrder consecutive_order(const Packing& packing, int64_t multiple, int rank, int num_ranks);

}  // namespace longspan
