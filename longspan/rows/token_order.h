// The order of a rank's tokens. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan {

/// The tokens of one rank of a sequence-parallel group, in row order.
struct TokenOrder {
  Packing packing;             // packing of the whole padded row
  std::vector<int64_t> index;  // for each local token, the index in the unpadded row; -1: padding
};

}  // namespace longspan
