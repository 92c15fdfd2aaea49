// The part of the program that needs CUDA: a shared object, loaded only where there is a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

#include "longspan/plan/device_choice.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan {

class BlockKernel;
namespace cuda {
class Kernels;
}

/// What the shared object offers: a description of the GPUs that it is for. Tests put one for a
/// simulated accelerator in its place (testing/accelerator).
struct CudaEntry {
  /// -1 where there is a driver that this torch cannot use.
  int (*num_devices)();
  void (*set_device)(int device);
  /// NCCL's process group among `size` ranks that share the store.
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, int64_t timeout_seconds);
  /// Why num_devices() is -1, one clause; empty where it is not.
  const char* (*trouble)();
  /// The stream (a CUstream) that torch's operators on this device use now, in this thread. Null
  /// where row_kernels is not.
  void* (*current_stream)(int device);
  /// What ATen calls these devices, and users.
  c10::DeviceType type;
  const char* name;
  /// The attention kernel for tensors on them: one of the program's two, or another.
  const BlockKernel& (*block_kernel)(const BlockKernel& of_cpu, const BlockKernel& of_cuda);
  /// What runs on a device in the place of the compiled kernels over rows (longspan/cuda), or null
  /// for ATen's operators. Null: the compiled kernels run there.
  cuda::Kernels* (*row_kernels)(int device);
};

/// Is there a GPU, and a CUDA build of torch to use it? Loads the shared object on the first call,
/// which must come before any other use of CUDA through ATen. False where torch is a CPU build,
/// where no driver is installed, or where the shared object is missing.
bool cuda_available();

/// Why cuda_available() is false, one clause; empty when it is true.
const std::string& why_no_cuda();

/// The shared object. Throws UserError (with the reason) when cuda_available() is false.
const CudaEntry& load_cuda();

/// The GPUs of this machine, for choose_device.
Gpus look_for_gpus();

/// What ATen calls the device that a run has chosen: that GPU of this machine, or the CPU.
c10::Device device_of(const DeviceChoice& choice, int gpu);

/// How a GPU computes what it may compute in more ways than one.
struct GpuNumbers {
  /// Every operation of ATen and of its libraries gives the same bits each time, which the
  /// environment variable CUBLAS_WORKSPACE_CONFIG (:4096:8) must allow.
  bool deterministic = false;
  /// Gemms of fp32 numbers round them to TF32's ten bits first. Else they never do.
  bool tf32 = false;
};

/// Makes this GPU the process's own, which ATen and NCCL then mean by "cuda" without an index.
void use_gpu(int number, const GpuNumbers& numbers);

}  // namespace longspan
