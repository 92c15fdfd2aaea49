// Plans of every method in the register, for tests of what all methods must do.
#pragma once

#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan::testing {

struct MethodPlan {
  ParallelPlan plan;
  AttentionSpec spec;
};

/// Of every method for each number of ranks up to `max_ranks` and several numbers of heads, where
/// it can split them; with head waves, with every Ulysses degree and with windows, where it has
/// them. With one rank: the local plan.
std::vector<MethodPlan> plans_of_every_method(int max_ranks);

}  // namespace longspan::testing
