// Plans of every method in the register, for tests of all methods.
#pragma once

#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan::testing {

struct MethodPlan {
  ParallelPlan plan;
  AttentionSpec spec;
};

/// Returns plans of every method for each number of ranks up to `max_ranks` and several numbers of
/// heads, if the method can split the heads; with head waves, every Ulysses degree and windows, if
/// the method has them. With one rank: the local plan.
std::vector<MethodPlan> plans_of_every_method(int max_ranks);

}  // namespace longspan::testing
