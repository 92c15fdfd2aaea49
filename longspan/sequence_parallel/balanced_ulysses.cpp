// Balanced Ulysses: any number of ranks, any heads, no wasted work. t: this rank's tokens, N: query
// heads, M: kv heads, H: elements of a head, P: ranks.
//
// The queries of all heads, concatenated head by head, are cut into P parts of equal causal cost. A
// cut inside a head splits the head's queries. The earlier part then needs only the earlier keys,
// and in a sliding window each part needs only keys near its queries. A part uses few kv heads, and
// a rank receives each needed key once. There are no dummy heads and no repeated attention. With
// more ranks than heads, every rank has some queries of at most two heads, and the keys that these
// queries see: context parallelism with a gather of the needed keys.
//
// Sent by all ranks, in the forward and in the backward: for queries and for outputs, the tokens of
// every piece (plan/head_split.h) that the piece's rank does not hold; for keys and for values, the
// tokens of every kv item that the item's rank does not hold.
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/consecutive_shares.h"
#include "longspan/sequence_parallel/exchanged_attention.h"

namespace longspan {
namespace {

class BalancedUlysses : public ConsecutiveShares {
 public:
  BalancedUlysses(Group group, const BlockKernel& kernel, int head_waves)
      : ConsecutiveShares(std::move(group), kernel), head_waves_(head_waves) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    const HeadSplit split = split_by_cost(group_.size(), inputs.q_TNH.size(1), inputs.k_SMH.size(1),
                                          packing, head_waves_, spec.window);
    return attend_exchanged(inputs, split, group_, piece_attention(kernel_, spec, packing),
                            checkpoint);
  }

 private:
  int head_waves_;
};

int64_t heads_of_layer(int64_t num_heads, const ParallelPlan& /*plan*/) { return num_heads; }

/// Heads that divide are balanced anyway, unless there are more waves than whole heads.
std::vector<int> auto_degrees(const PlanRequest& request, const Method& /*self*/) {
  const bool divide = request.num_heads % request.sequence_size == 0;
  if (divide && request.head_waves.value_or(1) <= 1) return {};
  return {request.sequence_size};
}

RankGeometry geometry(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int rank) {
  const int P = plan.sequence_size;
  const HeadSplit split = split_by_cost(P, shape.spec.num_heads, shape.spec.num_kv_heads, padded,
                                        plan.head_waves, shape.spec.window);
  return geometry_of_share(split[rank], P, padded, shape);
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return std::make_unique<BalancedUlysses>(mesh.sequence, kernel, plan.head_waves);
}

}  // namespace

extern const Method kBalancedUlysses{
    .name = "balanced-ulysses",
    .keys = kOnlyHeadWaves,
    .head_waves = {.own = 1, .cuts_heads = true, .most = heads_of_layer},
    .refusal = fits_any_heads,
    .ulysses_degrees = all_exchange_heads,
    .auto_degrees = auto_degrees,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry,
    .context_seconds = keys_at_hand,
    .exchange_seconds = exchanged_in_waves,
    .volume = volume_of_degrees,
    .memory = memory_of_degrees,
    .make = make,
};

}  // namespace longspan
