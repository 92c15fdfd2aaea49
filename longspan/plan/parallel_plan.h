// The parallel plan: world -> data x ring x Ulysses. The plan finds all divisibility errors before
// any allocation. A row is one sequence, or several packed sequences; the ranks of a
// sequence-parallel group share a row. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/plan/network_rates.h"
#include "longspan/registers/method.h"
#include "longspan/rows/packing.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// How ranks share a row in layers with a recurrence.
enum class RecurrentWay {
  kHeads,   ///< each rank processes the whole row with some of the heads
  kStates,  ///< each rank processes consecutive tokens; states pass from rank to rank
};

struct ParallelPlan {
  int world_size = 1;
  int data_size = 1;      // data-parallel groups
  int sequence_size = 1;  // = ring_size * ulysses_size
  int ring_size = 1;
  int ulysses_size = 1;
  int window_size = 1;      // ranks of an inner ring; divides ring_size
  int num_head_slices = 1;  // ranks that hold slices of the same heads
  int head_waves = 1;       // parts in which heads are exchanged and attended
  /// Neighbours that shard one copy of the model's states (ZeRO); divides world_size.
  int shard_size = 1;
  /// Neighbours that distribute the experts of each layer; divides world_size.
  int expert_parallel_size = 1;
  const Method* method = &kLocal;
  RecurrentWay recurrent_way = RecurrentWay::kHeads;
  bool own_degrees = false;  // each row has its own number of ranks
  std::string reason;        // the chosen method and the reason, one line
};

/// Returns the number of ranks that shard one copy of an expert's states, if `shard_size` ranks
/// shard one copy of the model's states.
inline int expert_shard_size(int shard_size, int expert_parallel_size) {
  return shard_size > expert_parallel_size ? shard_size / expert_parallel_size : 1;
}

/// The attention of a second model, the reference, as PlanRequest::layers; `name`: for messages.
struct SecondModel {
  std::string name;
  std::vector<std::pair<AttentionSpec, int64_t>> layers;
};

/// Inputs of a plan. The cost model (plan/cost_model.h) chooses missing degrees, window and method.
struct PlanRequest {
  int world_size = 1;
  int ranks_per_machine = 0;  // neighbours on a fast link; 0: all
  int sequence_size = 1;
  const Method* method = nullptr;  // null: chosen
  /// Keys that some methods take (registers/method_key.h). Default of waves: HeadWaves::own.
  std::optional<int> ulysses_degree, ring_degree, window_size, head_waves;
  int zero_stage = 0;
  std::optional<int64_t> shard_size;  // default: world_size with a zero_stage, 1 without
  int expert_parallel_size = 1;
  int64_t num_experts = 0;  // of a layer; 0: no experts
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 64;
  std::optional<int64_t> value_dim;  // elements of a value; default: head_dim
  /// The kinds of attention of a model's layers, each with its number of layers. The plan must suit
  /// every kind. Empty: all layers have the attention of num_heads, num_kv_heads, head_dim.
  std::vector<std::pair<AttentionSpec, int64_t>> layers;
  std::optional<RecurrenceSpec> recurrence;  // of the model's recurrent layers, if any
  /// The plan's method and degrees must suit this model's heads, too (plan_for_heads). The costs
  /// are computed for `layers` only.
  std::optional<SecondModel> reference;
  Packing row = Packing::single(8192);  // the documents expected in a row
  int64_t element_bytes = 4;            // of queries and keys
  bool cuda = false;
  bool checkpointing = true;
  NetworkRates network = {};  // measured, in the place of assumed rates of links
};

/// Describes the plan, e.g. "usp, ulysses 4 x ring 2", with windows if the plan has any, and with
/// waves unless their number is the method's default.
std::string describe_method(const ParallelPlan& plan);

/// True if the method can split the heads of `spec` over `sequence_size` ranks.
bool can_split(const Method& method, int sequence_size, const AttentionSpec& spec);

/// Returns the methods for which can_split() is true.
std::vector<const Method*> methods_that_split(int sequence_size, const AttentionSpec& spec);

/// Returns the first key of the request that the method does not take; null if there is none.
const MethodKey* foreign_key(const PlanRequest& request, const Method& method);

/// Returns the attention of a request.
AttentionSpec attention_of(const PlanRequest& request);

/// Makes the plan; the same on all ranks. Throws UserError for an impossible request, with the
/// given value, the limit, the remedy and the possible methods. With sequence_size 1 the plan is
/// local for every method, so that users can try sizes without a change of the method; keys that
/// ask for several ranks are refused.
ParallelPlan make_parallel_plan(const PlanRequest& request);
/// Returns `plan` for another model with other heads: replaces the parts that depend on the heads,
/// and divides tokens in the same way. `request`: the request of `plan`, with the other model's
/// layers. Throws UserError if the method of the plan cannot divide the other model's heads by the
/// plan's degrees; make_parallel_plan() makes no such plan for a request with this model as its
/// reference.
ParallelPlan plan_for_heads(const ParallelPlan& plan, const PlanRequest& request);
/// Returns the request with these layers; there must be one or more.
PlanRequest with_layers(PlanRequest request, std::vector<std::pair<AttentionSpec, int64_t>> layers);
ParallelPlan make_parallel_plan(int world_size, int sequence_size, const Method* method,
                                int64_t num_heads, int64_t num_kv_heads);

}  // namespace longspan
