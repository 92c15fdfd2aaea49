// The driver's functions that load and start kernels, out of libcuda.so.1. No torch, and none of
// CUDA's headers.
#pragma once

#include <string>

namespace longspan::cuda {

/// How many threads a kernel runs on, and bytes that those of a block share.
struct Launch {
  unsigned blocks_x = 1, blocks_y = 1;
  unsigned threads_x = 1, threads_y = 1;
  unsigned shared_bytes = 0;
};

/// A kernel that a device has loaded.
using Function = struct CudaFunction*;

/// 90 for compute capability 9.0. Takes nothing on the GPU. Throws std::runtime_error with the
/// driver's reason.
int compute_capability(int index);
/// The same of the GPU that this process computes on, of which there is one; 0 where the driver
/// does not say.
int capability_or_0(int index);

/// One GPU, as the driver sees it, in the context that torch uses, which it makes where there is
/// none: for the GPU that this process computes on alone.
class Device {
 public:
  /// Throws std::runtime_error with the driver's reason.
  explicit Device(int index);

  /// 90 for compute capability 9.0.
  int capability() const { return capability_; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  /// Loads machine code, for as long as the process lives. Throws std::runtime_error.
  struct CudaModule* load(const std::string& cubin) const;
  /// Throws std::runtime_error where the module has no kernel of this name.
  Function function(struct CudaModule* module, const std::string& name) const;
  /// Starts the kernel on a stream (a CUstream) with one argument, a struct. Throws
  /// std::runtime_error.
  void launch(Function function, const Launch& launch, void* stream, const void* argument) const;

 private:
  int index_;
  int capability_ = 0, num_multiprocessors_ = 0;
  struct CudaContext* context_ = nullptr;
};

}  // namespace longspan::cuda
