// Consecutive shares of a row.
#pragma once

#include "longspan/comm/group.h"
#include "longspan/data/batch.h"

namespace longspan {

/// This rank's of equal consecutive parts of what `order` holds.
TokenOrder share_of(TokenOrder order, int rank, int num_ranks);
TokenOrder share_of(TokenOrder order, const Group& group);

/// The row as it is, padded at its tail so that each rank's consecutive part is a multiple of
/// `multiple`.
TokenOrder consecutive_order(const Packing& packing, int64_t multiple, int rank, int num_ranks);
TokenOrder consecutive_order(const Packing& packing, int64_t multiple, const Group& group);

}  // namespace longspan
