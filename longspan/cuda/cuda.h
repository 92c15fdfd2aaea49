// Access to the CUDA part of the program: a shared object that is loaded only where there is a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

#include "longspan/cuda/device_choice.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan {

class BlockKernel;
namespace cuda {
class Kernels;
}

/// The interface of the shared object. Tests replace it by the interface of a simulated accelerator
/// (testing/accelerator).
struct CudaEntry {
  /// Returns the number of devices, or -1 where this torch cannot use the driver.
  int (*num_devices)();
  void (*set_device)(int device);
  /// Returns NCCL's process group of `size` ranks that share the store. If `whole` is not null, the
  /// group is split from NCCL's group `whole`, all of whose ranks call this function; `color`: the
  /// same for the ranks of one new group.
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, int64_t timeout_seconds,
                                                    const c10::intrusive_ptr<c10d::Backend>& whole,
                                                    int color);
  /// Returns why num_devices() is -1, as one clause; else "".
  const char* (*trouble)();
  /// Returns the stream (a CUstream) of torch's operators on this device in this thread. Null where
  /// replacement_kernels is set.
  void* (*current_stream)(int device);
  /// Device type for ATen; display name for users.
  c10::DeviceType type;
  const char* name;
  /// Returns the attention kernel for tensors on these devices: one of the two arguments, or
  /// another kernel.
  const BlockKernel& (*block_kernel)(const BlockKernel& of_cpu, const BlockKernel& of_cuda);
  /// Returns replacements for the compiled kernels over rows (longspan/cuda) on a device, or null
  /// for ATen's operators. The pointer itself is null where the compiled kernels run.
  cuda::Kernels* (*replacement_kernels)(int device);
};

/// Whether there is a GPU, and a CUDA build of torch to use it. Loads the shared object on the
/// first call, which must come before any other use of CUDA through ATen. False for a CPU build of
/// torch, without a driver, or without the shared object.
bool cuda_available();

/// Returns why cuda_available() is false, as one clause; else "".
const std::string& why_no_cuda();

/// Returns the shared object's interface. Throws UserError with the reason where cuda_available()
/// is false.
const CudaEntry& load_cuda();

/// Returns the GPUs of this machine, for choose_device().
Gpus find_gpus();

/// Returns ATen's device for a run's choice: GPU number `gpu` of this machine, or the CPU.
c10::Device device_of(const DeviceChoice& choice, int gpu);

/// Numerics of a GPU.
struct GpuNumbers {
  /// Makes every operation of ATen and its libraries bit-reproducible. Needs the environment
  /// variable CUBLAS_WORKSPACE_CONFIG=:4096:8.
  bool deterministic = false;
  /// Rounds inputs of fp32 gemms to TF32's ten bits. If false, these inputs are never rounded.
  bool tf32 = false;

  bool operator==(const GpuNumbers&) const = default;
};

/// Makes this GPU the current device of the thread, which ATen and NCCL use for "cuda" without an
/// index.
void use_gpu(int number);

/// As use_gpu(number), and sets the numerics of all GPU work of the process. For programs: a
/// session reads the numerics (gpu_numbers) and changes no setting of the process.
void use_gpu(int number, const GpuNumbers& numbers);
GpuNumbers gpu_numbers();

}  // namespace longspan
