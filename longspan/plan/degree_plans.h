// Plans for rows that have different numbers of ranks (sequence_parallel_size: auto). No torch.
#pragma once

#include <map>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Returns the plans of rows that 1, 2, ... and all ranks share, by number of ranks: the numbers
/// with ranges (RanksOfRun), of which large ones in steps of an eighth. Numbers for which the
/// method of the request has no plan are left out. `request`: for the whole world. Throws UserError
/// if all ranks cannot share a row, or if a key sets degrees that each row would have.
std::map<int, ParallelPlan> plans_by_degree(const PlanRequest& request);

/// Returns the request of a run whose rows have their own numbers of ranks, as a request of a run
/// with one rank for each row.
PlanRequest for_one_rank(PlanRequest request);

}  // namespace longspan
