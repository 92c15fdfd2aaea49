// The order in which one rank holds the tokens of a row. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/data/packing.h"

namespace longspan {

/// The order in which one rank of a sequence-parallel group holds the tokens of a row. Every rank
/// holds its tokens in the order of the row.
struct TokenOrder {
  Packing packing;  // of the padded row, in the order of the whole row
  std::vector<int64_t>
      index;  // for each local token its index in the unpadded row, or -1 for padding
};

}  // namespace longspan
