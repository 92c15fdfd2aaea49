// Base class of methods whose ranks hold consecutive parts of the row.
#pragma once

#include <cstdint>
#include <utility>

#include "longspan/rows/share_of.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// Each rank of the group holds an equal consecutive part of the row. The row is padded at the end.
class ConsecutiveShares : public SequenceParallel {
 public:
  int rank() const final { return group_.rank(); }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const final {
    return consecutive_order(packing, multiple, rank, group_.size());
  }

 protected:
  ConsecutiveShares(Group group, const BlockKernel& kernel)
      : group_(std::move(group)), kernel_(kernel) {}

  Group group_;
  const BlockKernel& kernel_;
};

}  // namespace longspan
