// Small things that ranks tell each other.
#pragma once

#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Everyone's numbers (equally many), in rank order. Collective.
std::vector<std::vector<double>> gather_numbers(const Group& group,
                                                const std::vector<double>& numbers);

}  // namespace longspan
