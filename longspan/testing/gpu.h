// Tests that need a GPU. Their names begin with "cuda", and `gpu_tests` holds nothing else.
#pragma once

#include <doctest/doctest.h>

#include "longspan/comm/cuda.h"

namespace longspan::testing {

/// Whether this machine has a GPU to test on, which the first of this process's then is; says so
/// where it has none. `deterministic`: as GpuNumbers.
inline bool has_gpu(bool deterministic = true) {
  if (!cuda_available()) {
    MESSAGE("not run: ", why_no_cuda());
    return false;
  }
  use_gpu(0, {.deterministic = deterministic});
  return true;
}

}  // namespace longspan::testing
