// Memory that a run may use on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Returns the bytes of this GPU that the run's `num_ranks` processes on the GPU may use together:
/// all memory except that of other programs. `beside_tensors`: bytes that this process holds
/// outside torch's allocator. The run's other processes on the GPU are assumed to hold as much as
/// this process.
int64_t device_memory(at::Device device, int64_t beside_tensors, int64_t num_ranks);

}  // namespace longspan
