// The part of the program that needs CUDA: NCCL process groups, and the stream of the kernels over
// rows (longspan/cuda). The attention kernel needs no CUDA at compile time and is in
// longspan/attention/cuda_kernel.cpp. Built against the headers of pip's packages, without a CUDA
// toolkit.
#include "longspan/cuda/cuda.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace longspan {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string& trouble_text() {
  static std::string text;
  return text;
}

int num_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorNoDevice) return 0;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  trouble_text() = std::string(cudaGetErrorString(error)) + " (the driver is for CUDA " +
                   version_text(driver) + ", torch for CUDA " + version_text(runtime) + ")";
  return -1;
}

const char* trouble() { return trouble_text().c_str(); }

void set_device(int device) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(device)); }

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, int64_t timeout_seconds,
                                               const c10::intrusive_ptr<c10d::Backend>& whole,
                                               int color) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  if (whole) {
    options->split_from = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(whole);
    options->split_color = color;
  }
  options->timeout = std::chrono::seconds(timeout_seconds);
  // A collective has few blocks and a gemm many, so waiting collectives go first.
  options->is_high_priority_stream = true;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // Connects now, where all ranks of the group are at the same line, and not in the first
  // collective.
  backend->eagerConnectSingleDevice(at::Device(at::kCUDA, c10::cuda::current_device()));
  return backend;
}

void* current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

const BlockKernel& block_kernel(const BlockKernel& /*of_cpu*/, const BlockKernel& of_cuda) {
  return of_cuda;
}

constexpr CudaEntry kEntry{num_devices,
                           set_device,
                           make_backend,
                           trouble,
                           current_stream,
                           c10::DeviceType::CUDA,
                           "CUDA",
                           block_kernel,
                           /*replacement_kernels=*/nullptr};

}  // namespace
}  // namespace longspan

extern "C" __attribute__((visibility("default"))) const longspan::CudaEntry* longspan_cuda_entry() {
  return &longspan::kEntry;
}

// FlashAttention 3 is loaded without Python (attention/flash3_attention.h). It names this function
// for its Python module. Linked with -z now, it loads only where the function exists. It is never
// called.
extern "C" __attribute__((visibility("default"))) void* PyModule_Create2(void* /*definition*/,
                                                                         int /*version*/) {
  return nullptr;
}
