// Attention on the simulated accelerator.
#pragma once

#include "longspan/attention/block_kernel.h"

namespace longspan::testing::accelerator {

/// Returns the CPU's kernel; each round of blocks is a launch.
const BlockKernel& block_kernel();

}  // namespace longspan::testing::accelerator
