// The CUDA half of the program: NCCL process groups. The attention kernel needs nothing of CUDA at
// compile time and lives in longspan/attention/cuda_kernel.cpp.
// Built against the headers of pip's packages, without a CUDA toolkit. Compiled and linked; not yet
// run on a GPU.
#include "longspan/comm/cuda.h"

#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace longspan {
namespace {

int num_devices() { return c10::cuda::device_count(); }

void set_device(int device) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(device)); }

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, int64_t timeout_seconds) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::seconds(timeout_seconds);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

constexpr CudaEntry kEntry{num_devices, set_device, make_backend};

}  // namespace
}  // namespace longspan

extern "C" __attribute__((visibility("default"))) const longspan::CudaEntry* longspan_cuda_entry() {
  return &longspan::kEntry;
}
