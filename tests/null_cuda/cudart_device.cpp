// CUDA runtime: GPUs, errors and functions of the driver.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "core.h"
#include "runtime.h"

namespace null_cuda {
namespace {
thread_local cudaError_t last_error = cudaSuccess;
}  // namespace

cudaError_t failed(cudaError_t error) { return last_error = error; }

}  // namespace null_cuda

using namespace null_cuda;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "cudaErrorPeerAccessAlreadyEnabled";
    default:
      return "cudaErrorOfAnotherKind";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "an error of another kind";
  }
}

cudaError_t cudaGetDeviceCount(int* number) {
  *number = settings().num_devices;
  return *number > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return choose_device(device) ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceSynchronize() {
  count_wait("cudaDeviceSynchronize");
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  *can = device != other;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int /*device*/, unsigned /*flags*/) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, size, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

// As the driver reports it (libcuda.so.1); attributes have the same numbers there.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  static auto* const get =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(RTLD_DEFAULT, "cuDeviceGetAttribute"));
  return get != nullptr && get(value, attribute, device) == 0 ? cudaSuccess
                                                              : failed(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= settings().num_devices) return failed(cudaErrorInvalidDevice);
  const bool hopper = settings().capability >= 90;
  cudaDeviceProp p{};
  std::strcpy(p.name, hopper ? "null GPU, as an H100" : "null GPU, as an A100");
  p.uuid.bytes[0] = static_cast<char>(device + 1);
  p.totalGlobalMem = settings().memory;
  p.major = settings().capability / 10;
  p.minor = settings().capability % 10;
  p.multiProcessorCount = settings().num_multiprocessors;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = (hopper ? 227 : 163) << 10;
  p.sharedMemPerMultiprocessor = (hopper ? 228 : 164) << 10;
  p.reservedSharedMemPerBlock = 1 << 10;
  p.totalConstMem = 64 << 10;
  p.l2CacheSize = (hopper ? 50 : 40) << 20;
  p.memPitch = 0x7fffffff;
  p.textureAlignment = 512;
  p.memoryBusWidth = 5120;
  p.concurrentKernels = p.unifiedAddressing = p.canMapHostMemory = p.managedMemory = 1;
  p.cooperativeLaunch = p.hostRegisterSupported = p.streamPrioritiesSupported = 1;
  p.asyncEngineCount = 3;
  p.clusterLaunch = hopper;
  p.pciBusID = device + 1;
  *properties = p;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
  // The driver has only the newest form of a changed function, whose name has a number.
  *function = nullptr;
  for (const char* suffix : {"", "_v2", "_v3", "_v4"}) {
    if (*function == nullptr)
      *function = dlsym(RTLD_DEFAULT, (std::string(symbol) + suffix).c_str());
  }
  if (result != nullptr) {
    *result =
        *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

}  // extern "C"
