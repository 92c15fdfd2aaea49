// The kernels over grouped rows (cuda/rows/grouped_gemm.cu, grouped_rows.cu) on the simulated
// accelerator.
#pragma once

#include <string_view>

#include "longspan/cuda/driver.h"
#include "longspan/testing/accelerator/kernel_arguments.h"

namespace longspan::testing::accelerator {

/// Returns null if no such kernel exists. Data that only the device knows (the rows of each group,
/// the addresses of matrices) are read when the kernel starts.
Compute grouped_kernel(std::string_view name, const cuda::Launch& launch, const void* argument,
                       Arguments& given);

}  // namespace longspan::testing::accelerator
