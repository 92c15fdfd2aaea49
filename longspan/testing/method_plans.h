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
/// heads that the method can split. Methods with several Ulysses degrees have a plan for each
/// degree. Methods with head waves or windows have further plans. With one rank: the local plan.
std::vector<MethodPlan> plans_of_every_method(int max_ranks);

}  // namespace longspan::testing
