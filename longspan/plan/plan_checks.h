// What a plan may ask for: every error of sizes, degrees, waves and keys that do not fit. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// "ulysses, ring".
std::string names_of(const std::vector<SequenceParallelMode>& modes);
bool is_ring(SequenceParallelMode mode);

/// All of these throw UserError: what was given, the limit, the remedy.
void check_world(int world_size, int sequence_size);

/// ParallelPlan::shard_size.
int shard_size_of(const PlanRequest& request);
/// Where zero_shard_size would fit into a machine, but some of its groups lie on two; else empty.
std::string warning_of_shards(const PlanRequest& request);
/// Keys that want more than one process to a row.
void check_keys_of_one_rank(const PlanRequest& request);
/// Keys that the mode does not have.
void check_keys_fit(const PlanRequest& request, SequenceParallelMode mode);
void check_heads(const PlanRequest& request, SequenceParallelMode mode);
void check_waves(const PlanRequest& request, const ParallelPlan& plan);

/// Ulysses degrees that serve the request, ascending; the one that it names, where it names one.
std::vector<int> ulysses_degrees(const PlanRequest& request, SequenceParallelMode mode);
/// Processes of an inner ring of loongtrain.
int window_of(const PlanRequest& request, int ring_size, int ulysses_size);

}  // namespace longspan
