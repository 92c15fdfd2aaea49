// CUDA runtime: kernels. Programs register them by the address of a function, and start them. A
// start is checked as a GPU would check it, and counted.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core.h"
#include "runtime.h"

namespace null_cuda {
namespace {

constexpr int kSharedBytes90 = 227 << 10, kSharedBytes80 = 163 << 10, kSharedBytesOfAll = 48 << 10;

struct Kernel {
  const char* symbol = nullptr;
  std::string name;  // readable, set at the first start
  int shared_bytes = kSharedBytesOfAll;
};

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> of;

  static Kernels& get() {
    static auto* const kernels = new Kernels;
    return *kernels;
  }
  Kernel* find(const void* function) {
    const std::lock_guard lock(mutex);
    const auto known = of.find(function);
    return known != of.end() ? &known->second : nullptr;
  }
};

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

thread_local std::vector<Configuration> configurations;

int most_shared_bytes() { return settings().capability >= 90 ? kSharedBytes90 : kSharedBytes80; }

std::string text_of(const dim3& size) {
  return std::to_string(size.x) + " x " + std::to_string(size.y) + " x " + std::to_string(size.z);
}

cudaError_t launch(Kernel* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  if (kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  const std::lock_guard lock(Kernels::get().mutex);
  if (kernel->name.empty()) kernel->name = readable(kernel->symbol);
  const std::string& refused = settings().refused_kernels;
  if (!refused.empty() && kernel->name.find(refused) != std::string::npos) {
    return failed(cudaErrorInvalidConfiguration);
  }
  const bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffU &&
                    grid.y <= 65535 && grid.z <= 65535 && block.x > 0 && block.y > 0 &&
                    block.z > 0 && block.z <= 64 && uint64_t{block.x} * block.y * block.z <= 1024 &&
                    static_cast<int64_t>(shared_bytes) <= kernel->shared_bytes;
  if (!fits) {
    complain(kernel->name + " is started with " + text_of(grid) + " blocks of " + text_of(block) +
             " threads and " + std::to_string(shared_bytes) + " bytes of shared memory");
    return failed(cudaErrorInvalidConfiguration);
  }
  count(Counted::kLaunches, kernel->name);
  return cudaSuccess;
}

cudaError_t set_attribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > most_shared_bytes()) {
      complain("a kernel asks for " + std::to_string(value) + " bytes of shared memory");
      return failed(cudaErrorInvalidValue);
    }
    kernel->shared_bytes = value;
  }
  return cudaSuccess;
}

}  // namespace

std::string readable(const char* symbol) {
  int status = 0;
  char* const text = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : symbol;
  std::free(text);
  return name;
}

}  // namespace null_cuda

using namespace null_cuda;

extern "C" {

void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Kernels& kernels = Kernels::get();
  const std::lock_guard lock(kernels.mutex);
  kernels.of[function].symbol = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  if (configurations.empty()) return failed(cudaErrorMissingConfiguration);
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  Kernel* const known = Kernels::get().find(function);
  *kernel = reinterpret_cast<cudaKernel_t>(known);
  return known != nullptr ? cudaSuccess : failed(cudaErrorInvalidDeviceFunction);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** /*arguments*/,
                               size_t shared_bytes, cudaStream_t /*stream*/) {
  return launch(reinterpret_cast<Kernel*>(kernel), grid, block, shared_bytes);
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** /*arguments*/,
                             size_t shared_bytes, cudaStream_t /*stream*/) {
  return launch(Kernels::get().find(function), grid, block, shared_bytes);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                        void** /*arguments*/, size_t shared_bytes,
                                        cudaStream_t /*stream*/) {
  return launch(Kernels::get().find(function), grid, block, shared_bytes);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* function,
                                void** /*arguments*/) {
  return launch(Kernels::get().find(function), how->gridDim, how->blockDim, how->dynamicSmemBytes);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const Kernel* const kernel = Kernels::get().find(function);
  if (kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = settings().capability;
  attributes->maxDynamicSharedSizeBytes = kernel->shared_bytes;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return set_attribute(Kernels::get().find(function), attribute, value);
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute,
                                            int value, int /*device*/) {
  return set_attribute(reinterpret_cast<Kernel*>(kernel), attribute, value);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* num_blocks,
                                                                   const void* /*function*/,
                                                                   int num_threads,
                                                                   size_t shared_bytes,
                                                                   unsigned /*flags*/) {
  *num_blocks = num_threads > 0 && num_threads <= 1024 ? 2048 / num_threads : 0;
  if (shared_bytes > 0) {
    const int fitting = static_cast<int>(most_shared_bytes() / shared_bytes);
    *num_blocks = *num_blocks < fitting ? *num_blocks : fitting;
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, const void* function,
                                                          int num_threads, size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(num_blocks, function, num_threads,
                                                                shared_bytes, 0);
}

}  // extern "C"
