#include "longspan/cuda/cuda.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "longspan/base/user_error.h"
#include "longspan/files/program_library.h"

namespace longspan {
namespace {

struct Loaded {
  const CudaEntry* entry = nullptr;
  std::string reason;
  bool broken = false;  // a driver that torch cannot use
};

Loaded load() {
  Loaded loaded;
  // Loads the driver first: without one, torch_cuda's 1 GB is not even mapped.
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    loaded.reason = "no NVIDIA driver, libcuda.so.1, on this machine";
    return loaded;
  }
  const std::string path = program_library("liblongspan_cuda.so");
  if (path.empty()) {
    const std::string skipped = LONGSPAN_CUDA_SKIPPED;
    loaded.reason = skipped.empty() ? "liblongspan_cuda.so is not where it was installed"
                                    : "this build has no CUDA library of its own: " + skipped;
    return loaded;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    loaded.broken = true;
    loaded.reason = dlerror();
    return loaded;
  }
  auto* entry = reinterpret_cast<const CudaEntry* (*)()>(dlsym(library, "longspan_cuda_entry"));
  if (entry == nullptr) {
    loaded.broken = true;
    loaded.reason = path + " has no entry point";
    return loaded;
  }
  const int num_devices = entry()->num_devices();
  loaded.broken = num_devices < 0;
  if (loaded.broken) {
    loaded.reason = entry()->trouble();
  } else if (num_devices == 0) {
    loaded.reason = "the NVIDIA driver sees no GPU";
  } else {
    loaded.entry = entry();
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

bool cuda_available() { return loaded().entry != nullptr; }

const std::string& why_no_cuda() { return loaded().reason; }

const CudaEntry& load_cuda() {
  if (loaded().entry == nullptr) {
    throw UserError(
        fmt::format("CUDA cannot be used: {}. Run on the CPU instead.", loaded().reason));
  }
  return *loaded().entry;
}

Gpus find_gpus() {
  if (!cuda_available()) {
    return {.count = 0, .why_none = why_no_cuda(), .broken = loaded().broken};
  }
  return {.count = load_cuda().num_devices(), .why_none = {}, .name = load_cuda().name};
}

c10::Device device_of(const DeviceChoice& choice, int gpu) {
  if (!choice.cuda()) return c10::Device(c10::DeviceType::CPU);
  return {load_cuda().type, static_cast<c10::DeviceIndex>(gpu)};
}

void use_gpu(int number) { load_cuda().set_device(number); }

GpuNumbers gpu_numbers() {
  const at::Context& context = at::globalContext();
  return {.deterministic = context.deterministicAlgorithms(), .tf32 = context.allowTF32CuBLAS()};
}

void use_gpu(int number, const GpuNumbers& numbers) {
  use_gpu(number);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(numbers.deterministic, /*warn_only=*/false);
  context.setAllowTF32CuBLAS(numbers.tf32);
  // Memory is always written before it is read, so it needs no fill values.
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace longspan
