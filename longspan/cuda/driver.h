// The driver's functions that load and start kernels, from libcuda.so.1. No torch, and no CUDA
// headers.
#pragma once

#include <string>

namespace longspan::cuda {

/// Blocks and threads of a launch, and bytes that the threads of a block share.
struct Launch {
  unsigned blocks_x = 1, blocks_y = 1;
  unsigned threads_x = 1, threads_y = 1;
  unsigned shared_bytes = 0;
};

/// A kernel loaded on a device.
using Function = struct CudaFunction*;

/// Returns the compute capability: 90 for 9.0. Takes no memory on the GPU. Throws
/// std::runtime_error with the driver's reason.
int compute_capability(int index);
/// As compute_capability(), for this process's own GPU; 0 where the driver reports none. A process
/// has one GPU.
int capability_or_0(int index);

/// One GPU, in the context that torch uses. The constructor creates a missing context, so construct
/// a Device only for this process's own GPU.
class Device {
 public:
  /// Throws std::runtime_error with the driver's reason.
  explicit Device(int index);

  /// Compute capability: 90 for 9.0.
  int capability() const { return capability_; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  /// Loads machine code for the life of the process. Throws std::runtime_error.
  struct CudaModule* load(const std::string& cubin) const;
  /// Throws std::runtime_error where the module has no kernel of this name.
  Function function(struct CudaModule* module, const std::string& name) const;
  /// Starts the kernel on a stream (a CUstream). `argument` points to its one argument, a struct.
  /// Throws std::runtime_error.
  void launch(Function function, const Launch& launch, void* stream, const void* argument) const;

 private:
  int index_;
  int capability_ = 0, num_multiprocessors_ = 0;
  struct CudaContext* context_ = nullptr;
};

}  // namespace longspan::cuda
