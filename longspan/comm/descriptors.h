// File descriptors that a run needs, counted before the run opens them. No torch.
#pragma once

#include <cstdint>
#include <map>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Returns how many files and connections this process may open (ulimit -n). The program raises the
/// limit at its start (cli/process/resources.h).
int64_t descriptor_limit();

/// Returns an upper limit of the descriptors that a rank of the plan needs. The sum counts a
/// connection to each other rank in each of the rank's groups, the descriptors of each group and of
/// the run itself, and the connections of all ranks if the rank serves the store.
int64_t descriptors_of_rank(const ParallelPlan& plan, bool serves_store);

/// Returns an upper limit of the further descriptors of a rank that shares rows with some of its
/// neighbours, by these plans (Submeshes): a rank is in at most two ranges of each number of ranks.
int64_t descriptors_of_submeshes(const std::map<int, ParallelPlan>& plans);

/// Returns an upper limit of the descriptors of a launcher that serves the store of `world_size`
/// ranks.
int64_t descriptors_of_launcher(int64_t world_size);

/// Throws UserError, with both numbers, where the limit is less than `needed`. `who`: the process
/// that needs the descriptors, as in "A process of this run".
void require_descriptors(const char* who, int64_t needed);

}  // namespace longspan
