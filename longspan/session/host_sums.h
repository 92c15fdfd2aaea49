// Sums of numbers on hosts over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Returns the sums over the ranks of the group, which exchanges tensors of `device`. Collective.
std::vector<double> sums_over(const Group& group, const std::vector<double>& values,
                              at::Device device);

}  // namespace longspan
