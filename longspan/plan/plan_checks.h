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
/// Returns ParallelPlan::expert_parallel_size; it must suit the number of processes, the model's
/// experts and the shards.
int expert_parallel_size_of(const PlanRequest& request, int shard_size);
/// Refuses a number of experts that cannot be distributed evenly. `whose`: e.g. "the model".
void check_experts_divide(int expert_parallel_size, int64_t num_experts, const std::string& whose);
/// Returns a warning if groups of zero_shard_size would fit into one machine, but some span two;
/// otherwise empty.
std::string warning_of_shards(const PlanRequest& request);
/// Refuses keys that need more than one process per row.
void check_keys_of_one_rank(const PlanRequest& request);
/// Refuses keys that the method does not take.
void check_keys_fit(const PlanRequest& request, const Method& method);
/// Refuses keys whose methods `auto` never chooses.
void check_keys_fit_auto(const PlanRequest& request);
void check_heads(const PlanRequest& request, const Method& method);
void check_waves(const PlanRequest& request, const ParallelPlan& plan);

/// Checks the degrees in the request, for a method that takes them.
void check_degrees(const PlanRequest& request, const Method& method);
/// Returns the number of processes of an inner ring: as requested, or the ring ranks of a machine.
int window_of(const PlanRequest& request, int ring_size, int ulysses_size);

}  // namespace longspan
