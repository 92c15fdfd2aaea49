// Memory of a vision tower on one rank, by formula. No torch.
#pragma once

#include "longspan/account/memory_model.h"

namespace longspan {

/// Bytes of a tower. The tower's forward comes before the decoder's, its backward after it.
struct TowerMemory {
  double saved = 0, saved_on_host = 0;  ///< held from the tower's forward to its backward
  double features = 0;                  ///< held from the tower's forward to the decoder's forward
  double forward = 0, backward = 0;     ///< temporary, besides the saved tensors
  double pixels = 0;                    ///< held at all times: pixels that are read ahead
};

/// Returns zeros for a model without a tower and for rows without pictures.
TowerMemory tower_memory(const MemoryFacts& facts);

}  // namespace longspan
