// Host memory for optimizer states and activations that do not fit the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Returns an uninitialized, contiguous host tensor for data of `device`. With CUDA the tensor is
/// pinned, so that copies overlap with computation. If `device` is the CPU, the tensor's memory
/// bypasses ATen's allocator, so that AllocationCounter (memory/counting_allocator.h) counts only
/// tensors in the device role; blocks of at least 1 MiB return to the system when the tensor dies.
/// Throws UserError when the host is out of memory.
at::Tensor empty_on_host(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

/// Same shape, dtype and device as `x`; uninitialized.
at::Tensor empty_on_host_like(const at::Tensor& x);

/// Bytes of all tensors from empty_on_host in this process: current, and the peak since the start
/// or the last restart_host_peak().
struct HostBytes {
  int64_t live = 0, peak = 0;
};
HostBytes host_bytes();
void restart_host_peak();

}  // namespace longspan
