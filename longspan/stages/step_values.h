// Numbers of a step from several ranks.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Returns the numbers of all ranks of `group`, concatenated in the order of the ranks. `device`:
/// of the group's tensors. Collective.
std::vector<double> values_of(const Group& group, const std::vector<double>& own,
                              at::Device device);

}  // namespace longspan
