// The kernels of cuda/rows on the simulated accelerator: what a GPU starts by name and with a
// struct of addresses, computed by the loops of a CPU.
#pragma once

#include "longspan/cuda/kernels.h"

namespace longspan::testing::accelerator {

/// Those of one device, as long as the process lives.
cuda::Kernels& row_kernels(int device);

}  // namespace longspan::testing::accelerator
