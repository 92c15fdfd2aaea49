// Sums of host numbers over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Returns the elementwise sums of `values` over the ranks of the group. `device`: the device of
/// the group's tensors. Collective.
std::vector<double> sums_over(const Group& group, const std::vector<double>& values,
                              at::Device device);

}  // namespace longspan
