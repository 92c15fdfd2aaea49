// The NVIDIA driver (libcuda.so.1): functions for expandable segments of c10's allocator, and for
// starting kernels compiled by NVRTC.
#include <cuda.h>
#include <elf.h>

#include <cstdio>
#include <cstring>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "core.h"

using namespace null_cuda;

namespace {

constexpr size_t kGranularity = size_t{2} << 20;

CUresult is(bool well) { return well ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

bool known(int device) { return device >= 0 && device < settings().num_devices; }

/// A context is the number of its GPU plus one; a GPU has one.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(device) + 1); }
thread_local std::vector<CUcontext> contexts;

struct Function {
  std::string name;
  size_t num_bytes = 0;  // that its code takes
  unsigned most_shared_bytes = 48 << 10;
  bool is_loaded = false;
};
using Module = std::list<Function>;

/// Handles point into these lists.
struct Modules {
  std::mutex mutex;
  std::list<Module> all;
} modules;

Function& function_of(CUfunction handle) { return *reinterpret_cast<Function*>(handle); }
Module& module_of(CUmodule handle) { return *reinterpret_cast<Module*>(handle); }

/// As a driver that loads lazily: a kernel takes memory when it is loaded or first looked up.
CUresult load(Function& function) {
  const std::lock_guard lock(modules.mutex);
  if (function.is_loaded) return CUDA_SUCCESS;
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  const int device = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  if (allocate(device, function.num_bytes) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  function.is_loaded = true;
  count(Counted::kBytes, "of kernels", static_cast<int64_t>(function.num_bytes));
  note_load(settings().memory - free_bytes(device));
  return CUDA_SUCCESS;
}

/// Bytes that the threads of a block may share at most.
unsigned most_shared_bytes() { return (settings().capability >= 90 ? 227 : 163) << 10; }

/// Returns an image's kernels, which are its sections of code.
Module kernels_of(const char* image) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
  const char* const names = image + sections[header->e_shstrndx].sh_offset;
  Module kernels;
  for (int i = 0; i < header->e_shnum; ++i) {
    const std::string name = names + sections[i].sh_name;
    if (!name.starts_with(".text.")) continue;
    kernels.push_back(
        {.name = name.substr(6), .num_bytes = (sections[i].sh_size + 511) / 512 * 512});
  }
  return kernels;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned /*flags*/) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS                 ? "no error"
          : error == CUDA_ERROR_OUT_OF_MEMORY   ? "out of memory"
          : error == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
                                                : "invalid argument";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }

// NVRTC looks for an undocumented table, and continues without it.
CUresult cuGetExportTable(const void** table, const CUuuid* /*id*/) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  if (handle != nullptr) *handle = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return known(number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetCount(int* number) {
  *number = settings().num_devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice /*device*/) {
  std::snprintf(name, size, "null GPU");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!known(device)) return CUDA_ERROR_INVALID_DEVICE;
  const bool hopper = settings().capability >= 90;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = settings().capability / 10;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = settings().capability % 10;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = settings().num_multiprocessors;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = 2048;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      *value = 0x7fffffff;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      *value = 65535;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      *value = 1024;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      *value = 64;
      break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = 32;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      *value = 48 << 10;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = static_cast<int>(most_shared_bytes());
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = (hopper ? 228 : 164) << 10;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = (hopper ? 50 : 40) << 20;
      break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return known(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice /*device*/) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = known(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? context_of(current_device()) : contexts.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  const bool well = choose_device(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  return well ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp* /*how*/,
                                       CUmemAllocationGranularity_flags /*which*/) {
  *size = kGranularity;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                             CUdeviceptr /*wanted*/, unsigned long long /*flags*/) {
  if (size % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = reserve_addresses(size, alignment);
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return is(free_addresses(address, size));
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* memory, size_t size,
                     const CUmemAllocationProp* how, unsigned long long /*flags*/) {
  if (size % kGranularity != 0 || !known(how->location.id)) return CUDA_ERROR_INVALID_VALUE;
  count(Counted::kCalls, "cuMemCreate");
  *memory = create_memory(how->location.id, size);
  return *memory != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle memory) { return is(release_memory(memory)); }
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* memory, void* address) {
  uint64_t number = 0;
  if (!retain_memory(reinterpret_cast<uintptr_t>(address), &number))
    return CUDA_ERROR_INVALID_VALUE;
  *memory = number;
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle memory, unsigned long long /*flags*/) {
  return is(offset == 0 && map_memory(address, size, memory));
}
CUresult cuMemUnmap(CUdeviceptr address, size_t size) { return is(unmap_memory(address, size)); }
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* /*who*/,
                        size_t /*number*/) {
  return is(is_memory(reinterpret_cast<void*>(address), size));
}
CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* size, CUdeviceptr address) {
  uintptr_t start = 0;
  size_t bytes = 0;
  if (!extent_of(address, &start, &bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (begin != nullptr) *begin = start;
  if (size != nullptr) *size = bytes;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  const int of = settings().modules_of;
  if (settings().error_of_modules != 0 && (of < 0 || context == context_of(of))) {
    return static_cast<CUresult>(settings().error_of_modules);
  }
  count(Counted::kCalls, "cuModuleLoadData");
  if (image == nullptr || std::memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(modules.mutex);
  modules.all.push_back(kernels_of(static_cast<const char*>(image)));
  *module = reinterpret_cast<CUmodule>(&modules.all.back());
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule /*module*/) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunctionCount(unsigned* number, CUmodule module) {
  *number = static_cast<unsigned>(module_of(module).size());
  return CUDA_SUCCESS;
}
CUresult cuModuleEnumerateFunctions(CUfunction* list, unsigned number, CUmodule module) {
  for (Function& function : module_of(module)) {
    if (number-- == 0) break;
    *list++ = reinterpret_cast<CUfunction>(&function);
  }
  return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction function) {
  count(Counted::kCalls, "cuFuncLoad");
  return load(function_of(function));
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  for (Function& known : module_of(module)) {
    if (known.name != name) continue;
    *function = reinterpret_cast<CUfunction>(&known);
    return load(known);
  }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  count(Counted::kCalls, "cuFuncSetAttribute");
  if (value < 0 || static_cast<unsigned>(value) > most_shared_bytes()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  function_of(function).most_shared_bytes = static_cast<unsigned>(value);
  return CUDA_SUCCESS;
}
// CUTLASS's gemms for compute capability 9.0 and later call it.
CUresult cuTensorMapEncodeTiled(CUtensorMap* /*map*/, CUtensorMapDataType /*type*/,
                                cuuint32_t /*rank*/, void* /*address*/, const cuuint64_t* /*sizes*/,
                                const cuuint64_t* /*strides*/, const cuuint32_t* /*box*/,
                                const cuuint32_t* /*element_strides*/,
                                CUtensorMapInterleave /*interleave*/,
                                CUtensorMapSwizzle /*swizzle*/,
                                CUtensorMapL2promotion /*promotion*/,
                                CUtensorMapFloatOOBfill /*fill*/) {
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks_x, unsigned blocks_y,
                        unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                        unsigned threads_z, unsigned shared_bytes, CUstream /*stream*/,
                        void** /*arguments*/, void** /*extra*/) {
  const Function& kernel = function_of(function);
  const bool fits = blocks_x > 0 && blocks_y > 0 && blocks_z > 0 && blocks_x <= 0x7fffffffU &&
                    blocks_y <= 65535 && blocks_z <= 65535 && threads_x > 0 && threads_y > 0 &&
                    threads_z > 0 && uint64_t{threads_x} * threads_y * threads_z <= 1024 &&
                    shared_bytes <= kernel.most_shared_bytes;
  if (!fits) {
    complain(kernel.name + " is started with a configuration that no GPU takes");
    return CUDA_ERROR_INVALID_VALUE;
  }
  count(Counted::kLaunches, kernel.name);
  return CUDA_SUCCESS;
}

}  // extern "C"
