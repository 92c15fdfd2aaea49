// Open files and connections: as many as a run takes, before it takes them. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// How many files and connections this process may have open (ulimit -n). The program raises it
/// when it starts (cli/process/resources.h).
int64_t descriptor_limit();

/// The most descriptors that a rank of the plan has open: a connection to each other rank of each
/// of its groups, what each group and the rest of a run take, and everyone's where it serves the
/// store.
int64_t descriptors_of_rank(const ParallelPlan& plan, bool serves_store);

/// The most descriptors that a launcher has open which serves the store of so many ranks.
int64_t descriptors_of_launcher(int64_t world_size);

/// Throws UserError where the limit is less than `needed`: it names what is needed and what is
/// allowed. `who` is who needs it: "A process of this run".
void require_descriptors(const char* who, int64_t needed);

}  // namespace longspan
