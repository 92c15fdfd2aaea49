// How much memory a GPU has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Bytes of this GPU that this process may have: all but what other processes hold.
/// `beside_tensors` are this process's own beside what torch's allocator has.
int64_t device_memory(at::Device device, int64_t beside_tensors);

}  // namespace longspan
