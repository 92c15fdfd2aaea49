// The kernels over rows on this process's GPUs: compiled at first use, cached on disk, started on
// torch's streams. No torch.
#pragma once

#include <string>

#include "longspan/cuda/driver.h"
#include "longspan/cuda/kernel_sources.h"

namespace longspan::cuda {

/// Bytes of a multiprocessor that its blocks share, on GPUs of compute capability 8.0 or later: at
/// least as many.
inline constexpr int kLeastSharedBytes = 100 << 10;

/// A part's kernels on one GPU.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual int num_multiprocessors() const = 0;
  /// Bytes of a multiprocessor that its blocks share.
  virtual int shared_bytes() const { return kLeastSharedBytes; }
  /// Starts a kernel on torch's current stream of this GPU. `argument`: a struct of
  /// cuda/rows/arguments.h. Throws as Device.
  template <typename Argument>
  void launch(const std::string& name, const Launch& launch, const Argument& argument) {
    start(name, launch, &argument);
  }

 protected:
  virtual void start(const std::string& name, const Launch& launch, const void* argument) = 0;
};

/// Returns the part's kernels, compiled and loaded. Null while kernels are switched off
/// (WithoutKernels), and where the part's kernels cannot be used, with one warning. ATen's
/// operators then replace the kernels. Throws for a GPU without memory and for errors of the GPU: a
/// later call loads the kernels again.
Kernels* kernels_of(int device, Part part);

/// Loads all parts, while there is memory. Throws as kernels_of().
void load_all_kernels(int device);

/// True if the code of some part was refused by this process's GPU or its compiler. ATen's
/// operators then compute its passes in parts (kComposedNumbers).
bool kernels_were_refused();

/// Hides the kernels from all threads for its lifetime, for comparisons with ATen's operators.
class WithoutKernels {
 public:
  WithoutKernels();
  ~WithoutKernels();
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;
};

/// Makes kernels_of() return these kernels for tensors of any device, for its lifetime. For tests
/// without a GPU.
class WithKernels {
 public:
  explicit WithKernels(Kernels& kernels);
  ~WithKernels();
  WithKernels(const WithKernels&) = delete;
  WithKernels& operator=(const WithKernels&) = delete;
};

/// Returns a part's machine code from the cache, or compiles it. Throws CompileError.
std::string cubin_of(Part part, int capability);

}  // namespace longspan::cuda
