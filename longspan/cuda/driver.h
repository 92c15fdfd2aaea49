// The driver's functions that load and start kernels, from libcuda.so.1. No torch, and no CUDA
// headers.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace longspan::cuda {

/// The driver cannot use machine code: there is none for this GPU, or the driver is too old. The
/// GPU is as it was. The message is one clause.
class CodeRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The GPU has too little memory, by the driver.
class OutOfGpuMemory : public std::bad_alloc {
 public:
  explicit OutOfGpuMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Blocks and threads of a launch, and bytes that the threads of a block share.
struct Launch {
  unsigned blocks_x = 1, blocks_y = 1;
  unsigned threads_x = 1, threads_y = 1;
  unsigned shared_bytes = 0;
};

/// Bytes that the threads of a block may share in every kernel.
inline constexpr unsigned kSharedBytesOfAnyKernel = 48 << 10;

/// A kernel loaded on a device.
using Function = struct CudaFunction*;

/// Returns the compute capability: 90 for 9.0. Takes no memory on the GPU. Throws
/// std::runtime_error with the driver's reason.
int compute_capability(int index);
/// As compute_capability(), for this process's own GPU; 0 where the driver reports none. A process
/// has one GPU.
int capability_or_0(int index);
/// The number of multiprocessors, in the same way.
int multiprocessors_or_0(int index);

/// One GPU, in the context that torch uses. Members throw OutOfGpuMemory, CodeRefused, or, for all
/// other errors of the driver, std::runtime_error with a message that is_error_of_gpu() knows: an
/// earlier kernel may have caused the error. The constructor creates a missing context, so
/// construct a Device only for this process's own GPU.
class Device {
 public:
  explicit Device(int index);

  /// Compute capability: 90 for 9.0.
  int capability() const { return capability_; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  /// Bytes of a multiprocessor that its blocks share.
  int shared_bytes() const { return shared_bytes_; }
  /// Loads machine code for the life of the process, with all its kernels: a driver that loads
  /// lazily would else take memory at a kernel's first use.
  struct CudaModule* load(const std::string& cubin) const;
  /// Throws CodeRefused where the module has no kernel of this name.
  Function function(struct CudaModule* module, const std::string& name) const;
  /// Allows launches of the kernel with up to as many shared bytes. Without it:
  /// kSharedBytesOfAnyKernel.
  void allow_shared_bytes(Function function, unsigned bytes) const;
  /// Starts the kernel on a stream (a CUstream). `argument` points to its one argument, a struct.
  void launch(Function function, const Launch& launch, void* stream, const void* argument) const;

 private:
  int index_;
  int capability_ = 0, num_multiprocessors_ = 0, shared_bytes_ = 0;
  struct CudaContext* context_ = nullptr;
};

}  // namespace longspan::cuda
