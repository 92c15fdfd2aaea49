// How much memory a GPU has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Bytes of this GPU that the `num_ranks` processes of this run which share it may have: all but
/// what processes of others hold. `beside_tensors` are this process's own beside what torch's
/// allocator has; the run's others are taken to hold as much as this one.
int64_t device_memory(at::Device device, int64_t beside_tensors, int64_t num_ranks);

}  // namespace longspan
