// Padding rules shared by the methods. No torch.
#pragma once

#include <cstdint>

#include "longspan/rows/packing.h"

namespace longspan {

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the row with its length rounded up. The padding is a separate document: no other token
/// attends to the padding, and the padding attends to no other token. (Otherwise a recurrent
/// layer's state would pass between documents and padding.)
Packing pad_tail(const Packing& packing, int64_t multiple);

/// Returns the row with the length of EACH document rounded up. The padding is at the end of the
/// document, where causal attention of the document's tokens never sees the padding. In a
/// document with branches the padding belongs to the last branch.
Packing pad_documents(const Packing& packing, int64_t multiple);

}  // namespace longspan
