// Consecutive shares of a row. No torch.
#pragma once

#include "longspan/data/token_order.h"

namespace longspan {

/// A rank's of equal consecutive parts of what `order` holds.
TokenOrder share_of(TokenOrder order, int rank, int num_ranks);

/// The row as it is, padded at its tail so that each rank's consecutive part is a multiple of
/// `multiple`.
TokenOrder consecutive_order(const Packing& packing, int64_t multiple, int rank, int num_ranks);

}  // namespace longspan
