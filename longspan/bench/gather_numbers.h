// Small things that ranks tell each other.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Everyone's numbers (equally many), in rank order. Collective; `device` is the group's.
std::vector<std::vector<double>> gather_numbers(const Group& group,
                                                const std::vector<double>& numbers,
                                                at::Device device);

}  // namespace longspan
