// The kernels of rows in groups (cuda/rows/grouped_gemm.cu, grouped_rows.cu) on the simulated
// accelerator.
#pragma once

#include <string_view>

#include "longspan/testing/accelerator/kernel_arguments.h"

namespace longspan::testing::accelerator {

/// Null where none of them has this name. What the device alone knows, how many rows each group has
/// and where matrices are, is read when the kernel is started.
Compute grouped_kernel(std::string_view name, const void* argument, Arguments& given);

}  // namespace longspan::testing::accelerator
