// The kernels over numbers in 4 and 8 bits (cuda/rows/packed.cu, adamw_8bit.cu) on the simulated
// accelerator.
#pragma once

#include <string_view>

#include "longspan/testing/accelerator/kernel_arguments.h"

namespace longspan::testing::accelerator {

/// Returns null if no such kernel exists.
Compute byte_kernel(std::string_view name, const void* argument, Arguments& given);

}  // namespace longspan::testing::accelerator
