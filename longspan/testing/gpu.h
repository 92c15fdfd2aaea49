// Tests that need a GPU. `gpu_tests` has them, and the tests of kernels that run on any GPU.
#pragma once

#include <doctest/doctest.h>

#include "longspan/cuda/cuda.h"

namespace longspan::testing {

/// True if this machine has a GPU for tests; the machine's first GPU then becomes this process's
/// GPU. Otherwise prints the reason. `deterministic`: as in GpuNumbers.
inline bool has_gpu(bool deterministic = true) {
  if (!cuda_available()) {
    MESSAGE("not run: ", why_no_cuda());
    return false;
  }
  use_gpu(0, {.deterministic = deterministic});
  return true;
}

}  // namespace longspan::testing
