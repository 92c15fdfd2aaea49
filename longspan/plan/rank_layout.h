// Compares the machines of the ranks with the plan's groups. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// A rank's machine: `id` is equal for ranks of one machine.
struct RankMachine {
  std::string id, host;
};

/// A plan takes ranks 0 to n - 1, n to 2n - 1, ... for neighbours on a fast link, where n is
/// `ranks_per_domain`. Returns a warning if ranks of a group, which the plan takes for neighbours,
/// are on several machines: which groups, and the option of the launcher that changes the order;
/// otherwise "". `machines`: of all ranks, in order.
std::string warning_of_layout(const ParallelPlan& plan, const std::vector<RankMachine>& machines,
                              int ranks_per_domain);

}  // namespace longspan
