// CUDA runtime: memory and copies.
#include <cuda_runtime_api.h>

#include "core.h"
#include "runtime.h"
#include "values.h"

using namespace null_cuda;

namespace {

cudaError_t copied(void* to, const void* from, size_t size, cudaMemcpyKind kind, bool waits) {
  const char* direction = nullptr;
  const bool to_gpu = device_of(to) >= 0, from_gpu = device_of(from) >= 0;
  const bool as_said =
      kind == cudaMemcpyDefault ||
      (to_gpu == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
       from_gpu == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (size > 0 && (!as_said || !copy(to, from, size, &direction))) {
    complain("a copy of " + std::to_string(size) +
             " bytes leaves the memory of its GPU, or goes in another direction than it says");
    return failed(cudaErrorInvalidValue);
  }
  // A copy to host memory that is not registered with GPUs ends before its function returns.
  if (waits) {
    count_wait("cudaMemcpy");
  } else if (from_gpu && !to_gpu && !is_pinned(to)) {
    count_wait("cudaMemcpyAsync to pageable memory");
  }
  count(Counted::kCalls, waits ? "cudaMemcpy" : "cudaMemcpyAsync");
  return cudaSuccess;
}

cudaError_t filled(void* to, size_t size) {
  if (size > 0 && !is_memory(to, size)) return failed(cudaErrorInvalidValue);
  forget(reinterpret_cast<uintptr_t>(to), size);
  count(Counted::kCalls, "cudaMemset");
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
  count(Counted::kCalls, "cudaMalloc");
  *address = reinterpret_cast<void*>(allocate(current_device(), size));
  return *address != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  count_wait("cudaFree");
  return free_memory(reinterpret_cast<uintptr_t>(address)) ? cudaSuccess
                                                           : failed(cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t /*stream*/) {
  return cudaMalloc(address, size);
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t /*stream*/) {
  return free_memory(reinterpret_cast<uintptr_t>(address)) ? cudaSuccess
                                                           : failed(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = free_bytes(current_device());
  *total = settings().memory;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned /*flags*/) {
  count(Counted::kCalls, "cudaHostAlloc");
  *address = allocate_pinned(size);
  return *address != nullptr ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** address, size_t size) { return cudaHostAlloc(address, size, 0); }
cudaError_t cudaFreeHost(void* address) {
  return address == nullptr || free_pinned(address) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned /*flags*/) {
  register_pinned(address, size);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  return unregister_pinned(address) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostGetDevicePointer(void** address, void* host, unsigned /*flags*/) {
  *address = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const int device = device_of(address);
  void* const same = const_cast<void*>(address);
  attributes->device = device >= 0 ? device : current_device();
  if (device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = same;
  } else if (is_pinned(address)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = attributes->hostPointer = same;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->hostPointer = same;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return copied(to, from, size, kind, /*waits=*/true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return copied(to, from, size, kind, /*waits=*/false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int /*device*/, const void* from, int /*other*/,
                                size_t size, cudaStream_t /*stream*/) {
  return copied(to, from, size, cudaMemcpyDeviceToDevice, /*waits=*/false);
}
cudaError_t cudaMemset(void* to, int /*value*/, size_t size) { return filled(to, size); }
cudaError_t cudaMemsetAsync(void* to, int /*value*/, size_t size, cudaStream_t /*stream*/) {
  return filled(to, size);
}

}  // extern "C"
