// Checks of a plan's request: sizes, degrees, waves and keys. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// All functions throw UserError with the given value, the limit and the remedy.
void check_world(int world_size, int sequence_size);

/// Returns ParallelPlan::shard_size.
int shard_size_of(const PlanRequest& request);
/// Returns ParallelPlan::expert_parallel_size, which must fit the number of processes, the model's
/// experts and the shards.
int expert_parallel_size_of(const PlanRequest& request, int shard_size);
/// Refuses a number of experts that cannot be distributed evenly. `whose`: e.g. "the model".
void check_experts_divide(int expert_parallel_size, int64_t num_experts, const std::string& whose);
/// Returns a warning if a group of zero_shard_size ranks would fit into one machine, but some
/// groups span two machines; otherwise empty.
std::string warning_of_shards(const PlanRequest& request);
/// Refuses keys that need more than one process per row.
void check_keys_of_one_rank(const PlanRequest& request);
/// Refuses keys that the method does not take.
void check_keys_fit(const PlanRequest& request, const Method& method);
/// Refuses keys that belong only to methods that `auto` never chooses.
void check_keys_fit_auto(const PlanRequest& request);
void check_heads(const PlanRequest& request, const Method& method);
void check_waves(const PlanRequest& request, const ParallelPlan& plan);

/// Checks the degrees in the request, for a method with the keys of degrees.
void check_degrees(const PlanRequest& request, const Method& method);
/// Returns the number of ranks of an inner ring: the requested number, or the number of ring ranks
/// on one machine.
int window_of(const PlanRequest& request, int ring_size, int ulysses_size);

}  // namespace longspan
