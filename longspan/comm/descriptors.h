// Open files and connections: as many as a run takes, before it takes them. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// What this process may have open (ulimit -n), after raising its own limit as far as the system's
/// lets it.
int64_t raised_descriptor_limit();

/// What a rank of the plan has open at the most: a connection to each other rank of each of its
/// groups, what each group and the rest of a run take, and everyone's where it serves the store.
int64_t descriptors_of_rank(const ParallelPlan& plan, bool serves_store);

/// What a launcher has open that serves the store of so many ranks.
int64_t descriptors_of_launcher(int64_t world_size);

/// Raises the limit. Throws UserError where that is not enough: names what is needed and allowed.
/// `who` needs it: "A process of this run".
void require_descriptors(const char* who, int64_t needed);

}  // namespace longspan
