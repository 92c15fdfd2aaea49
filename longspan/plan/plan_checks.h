// What a plan may ask for: every error of sizes, degrees, waves and keys that do not fit. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// All of these throw UserError: what was given, the limit, the remedy.
void check_world(int world_size, int sequence_size);

/// ParallelPlan::shard_size.
int shard_size_of(const PlanRequest& request);
/// ParallelPlan::expert_parallel_size, which suits the number of processes, the model's experts and
/// the shards.
int expert_parallel_size_of(const PlanRequest& request, int shard_size);
/// Refuses a number of experts that cannot be shared out. `whose`: "the model".
void check_experts_divide(int expert_parallel_size, int64_t num_experts, const std::string& whose);
/// A warning where zero_shard_size would fit into a machine but some of its groups lie on two
/// machines; else empty.
std::string warning_of_shards(const PlanRequest& request);
/// Keys that want more than one process to a row.
void check_keys_of_one_rank(const PlanRequest& request);
/// Keys that the method does not take.
void check_keys_fit(const PlanRequest& request, const Method& method);
/// Keys whose methods `auto` never chooses.
void check_keys_fit_auto(const PlanRequest& request);
void check_heads(const PlanRequest& request, const Method& method);
void check_waves(const PlanRequest& request, const ParallelPlan& plan);

/// The degrees that the request names, for a method that has them.
void check_degrees(const PlanRequest& request, const Method& method);
/// Processes of an inner ring: what the request names, or the ring ranks of a machine.
int window_of(const PlanRequest& request, int ring_size, int ulysses_size);

}  // namespace longspan
