// The kernels of cuda/rows without a GPU: they run as ordinary functions (cuda_threads.h), on CPU
// tensors. Results differ only by the rounding of exp and of one division.
#pragma once

#include <string>

#include "longspan/cuda/kernels.h"

namespace longspan::testing {

class EmulatedKernels : public cuda::Kernels {
 public:
  /// Few, so that blocks of small tensors have several rows.
  int num_multiprocessors() const override { return 2; }

 protected:
  void start(const std::string& name, const cuda::Launch& launch, const void* argument) override;
};

}  // namespace longspan::testing
