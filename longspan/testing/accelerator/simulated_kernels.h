// The kernels of cuda/rows on the simulated accelerator: a GPU starts them by name with a struct of
// addresses; here the CPU's loops compute them.
#pragma once

#include "longspan/cuda/kernels.h"

namespace longspan::testing::accelerator {

/// Returns the kernels of one device, which are never freed.
cuda::Kernels& simulated_kernels(int device);

}  // namespace longspan::testing::accelerator
