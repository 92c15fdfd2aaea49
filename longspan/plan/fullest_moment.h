// The moment of a training step at which the device works with the most memory beside what is
// saved. No torch.
#pragma once

#include "longspan/plan/memory_model.h"

namespace longspan {

/// What a moment works with beside saved tensors: bytes for each of this rank's tokens, and bytes
/// that do not depend on the row.
struct Moment {
  const char* name;
  double per_token, fixed;
};

Moment fullest_moment(const MemoryFacts& facts);

}  // namespace longspan
