// Memory in the host role, for states and activations that the device has no room for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// An uninitialized, contiguous tensor on the host for data of `device`. With CUDA it is pinned, so
/// that copies run beside the computation. Where the device is the CPU itself, host and device are
/// one memory in two roles: the tensor gets memory that does not go through ATen's allocator, so
/// that AllocationCounter (memory/counting_allocator.h) counts the device role alone; it is given
/// back to the system when the tensor dies. Throws UserError when there is none left.
at::Tensor empty_on_host(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);

/// The same with a tensor's shape and dtype. Its numbers are not copied.
at::Tensor empty_on_host_like(const at::Tensor& x);

/// Bytes of all such tensors of this process: now, and the most at once since the start or the last
/// restart_host_peak().
struct HostBytes {
  int64_t live = 0, peak = 0;
};
HostBytes host_bytes();
void restart_host_peak();

}  // namespace longspan
