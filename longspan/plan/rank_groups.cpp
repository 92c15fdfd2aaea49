#include "longspan/plan/rank_groups.h"

namespace longspan {

std::vector<RankGroup> groups_of_rank(const ParallelPlan& plan, int rank) {
  using enum GroupKind;
  const auto where = [](bool same, GroupKind kind) {
    return same ? std::optional(kind) : std::nullopt;
  };
  const int P = plan.sequence_size, R = plan.ring_size, U = plan.ulysses_size;
  const int sequence = rank / P, sequence_rank = rank % P;
  const int ring_rank = sequence_rank / U, ulysses_rank = sequence_rank % U;
  const int ring = sequence * U + ulysses_rank;
  const int W = plan.window_size, D = R / W;
  const int S = plan.shard_size, slices = plan.num_head_slices;
  // Experts are sharded over the ranks of a shard that hold them, with one copy per shard.
  const int experts = plan.expert_parallel_size, expert_rank = rank % experts;
  const int shard_size = expert_shard_size(S, experts), span = shard_size * experts;
  return {
      {.kind = kWorld, .name = "world", .index = 0, .rank = rank, .size = plan.world_size},
      {.kind = kSequence,
       .name = "sequence",
       .index = sequence,
       .rank = sequence_rank,
       .size = P,
       .same_as = where(plan.data_size == 1, kWorld),
       .shares_row = true},
      {.kind = kData,
       .name = "data",
       .index = sequence_rank,
       .rank = sequence,
       .size = plan.data_size,
       .same_as = where(P == 1, kWorld)},
      {.kind = kRing,
       .name = "ring",
       .index = ring,
       .rank = ring_rank,
       .size = R,
       .same_as = where(U == 1, kSequence),
       .shares_row = true},
      {.kind = kUlysses,
       .name = "ulysses",
       .index = sequence * R + ring_rank,
       .rank = ulysses_rank,
       .size = U,
       .same_as = where(R == 1, kSequence),
       .shares_row = true},
      {.kind = kWindow,
       .name = "window",
       .index = ring * D + ring_rank / W,
       .rank = ring_rank % W,
       .size = W,
       .same_as = where(W == R, kRing),
       .shares_row = true},
      {.kind = kWindows,
       .name = "windows",
       .index = ring * W + ring_rank % W,
       .rank = ring_rank / W,
       .size = D,
       .same_as = where(W == 1, kRing),
       .shares_row = true},
      // Always separate: its bytes are counted separately, and on CUDA it runs concurrently with
      // the others.
      {.kind = kShard, .name = "shard", .index = rank / S, .rank = rank % S, .size = S},
      {.kind = kReplicas,
       .name = "replicas",
       .index = rank % S,
       .rank = rank / S,
       .size = plan.world_size / S,
       .same_as = where(S == 1, kWorld)},
      {.kind = kSlices,
       .name = "slices",
       .index = rank / slices,
       .rank = rank % slices,
       .size = slices,
       .same_as = where(slices == P, kSequence),
       .shares_row = true},
      {.kind = kExperts,
       .name = "experts",
       .index = rank / experts,
       .rank = expert_rank,
       .size = experts},
      {.kind = kExpertShard,
       .name = "expert_shard",
       .index = rank / span * experts + expert_rank,
       .rank = rank % span / experts,
       .size = shard_size,
       .same_as = where(experts == 1, kShard)},
      {.kind = kExpertReplicas,
       .name = "expert_replicas",
       .index = rank % span,
       .rank = rank / span,
       .size = plan.world_size / span,
       .same_as = where(span == S, kReplicas)},
  };
}

std::vector<RankGroup> connected_groups(const ParallelPlan& plan) {
  std::vector<RankGroup> groups = groups_of_rank(plan, 0);
  std::erase_if(groups, [](const RankGroup& group) { return group.same_as || group.size == 1; });
  return groups;
}

}  // namespace longspan
