// Attention on the simulated accelerator.
#pragma once

#include "longspan/attention/block_kernel.h"

namespace longspan::testing::accelerator {

/// The kernel of the CPU, of which each call for a round of blocks is a launch.
const BlockKernel& block_kernel();

}  // namespace longspan::testing::accelerator
