// Peak memory of a rank as numbers. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// Measured peaks of one rank, in bytes. Tensors have one of two roles, also on a CPU: device (for
/// computation) or host (offloaded).
struct MeasuredPeak {
  int64_t device = 0;    // tensors in the device role
  int64_t host = 0;      // tensors in the host role
  int64_t resident = 0;  // the whole process (VmHWM); 0 if unknown
  int64_t reserved = 0;  // GPU memory of torch's allocator: tensors and gaps between them
};

}  // namespace longspan
