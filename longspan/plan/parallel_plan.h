// world -> data x ring x ulysses. No torch. All divisibility errors are found here, before anything
// is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/data/packing.h"
#include "longspan/plan/method.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// How layers with a recurrence share a row.
enum class RecurrentWay {
  kHeads,   ///< each rank goes over the whole row with some of the heads
  kStates,  ///< each rank goes over consecutive tokens, and states pass from rank to rank
};

struct ParallelPlan {
  int world_size = 1;
  int data_size = 1;      // data-parallel groups
  int sequence_size = 1;  // = ring_size * ulysses_size
  int ring_size = 1;
  int ulysses_size = 1;
  int window_size = 1;      // ranks of an inner ring; divides ring_size
  int num_head_slices = 1;  // ranks that hold the slices of the same heads
  int head_waves = 1;       // parts in which heads are exchanged and attended
  /// Neighbours that divide one copy of the model's states among them (ZeRO); divides world_size.
  int shard_size = 1;
  /// Neighbours that share out the experts of each layer; divides world_size.
  int expert_parallel_size = 1;
  const Method* method = &kLocal;
  RecurrentWay recurrent_way = RecurrentWay::kHeads;
  std::string reason;  // what was chosen and why, one line
};

/// The ranks that divide one copy of an expert's states among them, where `shard_size` ranks divide
/// one of the model's.
inline int expert_shard_size(int shard_size, int expert_parallel_size) {
  return shard_size > expert_parallel_size ? shard_size / expert_parallel_size : 1;
}

/// What a plan is made from. Absent degrees, window and method are chosen (plan/cost_model.h).
struct PlanRequest {
  int world_size = 1;
  int ranks_per_machine = 0;  // neighbours on a fast link; 0: all of them
  int sequence_size = 1;
  const Method* method = nullptr;  // null: chosen
  /// Keys that some methods take (plan/method_key.h). Absent waves: HeadWaves::own.
  std::optional<int> ulysses_degree, ring_degree, window_size, head_waves;
  int zero_stage = 0;
  std::optional<int64_t> shard_size;  // absent: the world with a zero_stage, 1 without
  int expert_parallel_size = 1;
  int64_t num_experts = 0;  // of a layer; 0: the model has none
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 64;
  std::optional<int64_t> value_dim;  // of values and outputs; absent: head_dim
  /// The attentions of a model's layers, where they are of several kinds, each with the number of
  /// layers that have it. The plan then serves all of them. Empty: one, of these heads.
  std::vector<std::pair<AttentionSpec, int64_t>> layers;
  std::optional<RecurrenceSpec> recurrence;  // of the model's recurrent layers, if it has some
  Packing row = Packing::single(8192);       // documents that are expected in a row
  int64_t element_bytes = 4;                 // of queries and keys
  bool cuda = false;
  bool checkpointing = true;
};

/// The attention that a request is for.
AttentionSpec attention_of(const PlanRequest& request);

/// Makes the plan, which is the same on all ranks. Throws UserError for a request that cannot be
/// served: what was given, the limit, the remedy, and the methods that can serve. With
/// sequence_size 1 the plan is local whatever the method, so that a user can try sizes and leave
/// the method as it is; keys that ask for several ranks are refused.
ParallelPlan make_parallel_plan(const PlanRequest& request);
ParallelPlan make_parallel_plan(int world_size, int sequence_size, const Method* method,
                                int64_t num_heads, int64_t num_kv_heads);

}  // namespace longspan
