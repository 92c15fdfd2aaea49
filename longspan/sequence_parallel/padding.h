// Padding rules that the methods share. No torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"

namespace longspan {

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The row with its length rounded up. Padding is a document of its own: nothing attends to it, and
/// it attends to nothing else (a layer with a state would leak otherwise).
Packing pad_tail(const Packing& packing, int64_t multiple);

/// The row with the length of EACH document rounded up, at its tail: causal attention never sees
/// what follows it. In a forked document it belongs to the second branch.
Packing pad_documents(const Packing& packing, int64_t multiple);

}  // namespace longspan
