// Padding rules shared by the methods. No torch.
#pragma once

#include <cstdint>

#include "longspan/rows/packing.h"

namespace longspan {

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the row with its length rounded up. The padding is a separate document: nothing attends
/// to it and it attends to nothing else (otherwise a layer with a state would leak).
Packing pad_tail(const Packing& packing, int64_t multiple);

/// Returns the row with the length of EACH document rounded up at its tail, which causal attention
/// of the document never sees. In a forked document the padding belongs to the second branch.
Packing pad_documents(const Packing& packing, int64_t multiple);

}  // namespace longspan
