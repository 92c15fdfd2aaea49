// GatedDeltaNet's kernels on the simulated accelerator.
#pragma once

#include <string_view>

#include "longspan/testing/accelerator/kernel_arguments.h"

namespace longspan::testing::accelerator {

/// Empty if the name is of another kernel. `blocks`: of the launch, along tokens.
Compute recurrent_kernel(std::string_view name, unsigned blocks, const void* argument,
                         Arguments& given);

}  // namespace longspan::testing::accelerator
