// Dummy-Head Ulysses (Plug & Play Sequence Parallelism, section 3): adds zero query heads up to a
// multiple of P, so that any number of heads can be exchanged, and drops the zero heads afterwards.
// t: this rank's tokens, N: query heads, N': padded query heads, M: kv heads, H: elements of a
// head.
//
// The added heads use the last kv head. Zero queries attend, as in the paper, but no kv head is
// added or repeated. Sends the bytes of Ulysses with N' query heads.
#include <ATen/ATen.h>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/rows/padding.h"
#include "longspan/sequence_parallel/consecutive_shares.h"
#include "longspan/sequence_parallel/exchanged_attention.h"

namespace longspan {
namespace {

class DummyHeadUlysses : public ConsecutiveShares {
 public:
  DummyHeadUlysses(Group group, const BlockKernel& kernel, int head_waves)
      : ConsecutiveShares(std::move(group), kernel), head_waves_(head_waves) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    const at::Tensor &q_tNH = inputs.q_TNH, &sinks_N = inputs.sinks_N;
    const int64_t t = q_tNH.size(0), N = q_tNH.size(1), H = q_tNH.size(2);
    const int64_t num_dummies = round_up(N, group_.size()) - N;
    const HeadSplit split = split_with_dummy_heads(group_.size(), N, inputs.k_SMH.size(1),
                                                   t * group_.size(), head_waves_);
    const at::Tensor padded =
        num_dummies == 0 ? q_tNH
                         : at::cat({q_tNH, at::zeros({t, num_dummies, H}, q_tNH.options())}, 1);
    const at::Tensor sinks = num_dummies == 0 || !sinks_N.defined()
                                 ? sinks_N
                                 : at::constant_pad_nd(sinks_N, {0, num_dummies});
    const at::Tensor out =
        attend_exchanged({padded, inputs.k_SMH, inputs.v_SMH, sinks}, split, group_,
                         piece_attention(kernel_, spec, packing), checkpoint);
    return num_dummies == 0 ? out : out.narrow(1, 0, N);
  }

 private:
  int head_waves_;
};

int64_t padded_heads_of_rank(int64_t num_heads, const ParallelPlan& plan) {
  return round_up(num_heads, plan.sequence_size) / plan.sequence_size;
}

RankGeometry geometry(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int rank) {
  const int P = plan.sequence_size;
  const HeadSplit split = split_with_dummy_heads(P, shape.spec.num_heads, shape.spec.num_kv_heads,
                                                 padded.num_tokens(), plan.head_waves);
  return geometry_of_share(split[rank], P, padded, shape);
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return std::make_unique<DummyHeadUlysses>(mesh.sequence, kernel, plan.head_waves);
}

}  // namespace

extern const Method kDummyHeadUlysses{
    .name = "dummy-head-ulysses",
    .keys = kOnlyHeadWaves,
    .head_waves = {.own = 1, .cuts_heads = false, .most = padded_heads_of_rank},
    .refusal = fits_any_heads,
    .ulysses_degrees = all_exchange_heads,
    .auto_degrees = not_by_auto,
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
