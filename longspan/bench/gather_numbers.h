// An all-gather of a few numbers.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Returns the numbers of all ranks, in rank order. All ranks give the same number of values.
/// `device`: the device of the group's tensors. Collective.
std::vector<std::vector<double>> gather_numbers(const Group& group,
                                                const std::vector<double>& numbers,
                                                at::Device device);

}  // namespace longspan
