// XTuner-Ulysses: if P does not divide the heads, each head's elements are cut into s = P / gcd(N,
// P) slices. Slices are exchanged like heads, and s neighbouring ranks all-gather the slices of
// their common heads. All s ranks then attend with the same heads, and each rank returns one slice
// of the output. t: this rank's tokens, T = P t, N: query heads, M: kv heads, n, m: query heads and
// kv heads of this rank and its neighbours, H: elements of a head, h = H / s.
//
// Sent by a rank, in the forward and in the backward: (P-1)/P of its tokens' query and output
// heads, the slices of kv heads, and (s-1) times the received q, k and v (gathered; in the backward
// reduce-scattered).
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <numeric>

#include "longspan/comm/differentiable.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/consecutive_shares.h"
#include "longspan/sequence_parallel/exchanged_attention.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

class XtunerUlysses : public ConsecutiveShares {
 public:
  XtunerUlysses(Group group, Group slices, const BlockKernel& kernel)
      : ConsecutiveShares(std::move(group), kernel), slices_(std::move(slices)) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    const at::Tensor &q_tNH = inputs.q_TNH, &k_tMH = inputs.k_SMH, &v_tMH = inputs.v_SMH;
    const int num_holders = group_.size() / slices_.size();  // ranks with different heads
    const int64_t N = q_tNH.size(1), M = k_tMH.size(1), t = q_tNH.size(0);
    const HeadSplit by_holder = split_evenly(num_holders, N, M, t * group_.size(), 1);
    const BlocksByRank queries = of_slices(query_blocks(by_holder, 0), N);
    const BlocksByRank kv = of_slices(fetched_blocks(by_holder, 0), M);
    const auto q = start_tokens_to_heads(sliced(q_tNH), queries, group_);
    const auto k = start_tokens_to_heads(sliced(k_tMH), kv, group_);
    const auto v = start_tokens_to_heads(sliced(v_tMH), kv, group_);
    ExchangedHeads heads;
    heads.sinks_N = inputs.sinks_N;
    heads.queries = whole(finish_tokens_to_heads(q));
    heads.k_items = whole(finish_tokens_to_heads(k));
    heads.v_items = whole(finish_tokens_to_heads(v));
    const RankShare& share = by_holder[group_.rank() / slices_.size()];
    // The sinks' gradient on each neighbour comes from its slice of the output.
    std::vector<at::Tensor> outs = attend_pieces(
        share, share.waves[0], heads, piece_attention(kernel_, spec, packing), checkpoint);
    const int64_t h = v_tMH.size(2) / slices_.size();
    for (at::Tensor& out : outs) out = out.narrow(2, slices_.rank() * h, h);
    const at::Tensor out_tNh = finish_heads_to_tokens(
        start_heads_to_tokens(outs, queries, group_, t, checkpoint.output_is_known()));
    return out_tNh.view({t, slices_.size(), N, h}).transpose(1, 2).flatten(2);
  }

 private:
  // [t, N, H] -> [t, s N, h]: slice i of head n is head i N + n.
  at::Tensor sliced(const at::Tensor& x) const {
    return x.unflatten(2, {slices_.size(), -1}).transpose(1, 2).flatten(1, 2);
  }

  // Blocks of heads by holder -> blocks of sliced heads by rank.
  BlocksByRank of_slices(const BlocksByRank& by_holder, int64_t num_heads) const {
    BlocksByRank by_rank;
    for (const auto& blocks : by_holder) {
      for (int slice = 0; slice < slices_.size(); ++slice) {
        by_rank.push_back(blocks);
        for (HeadBlock& block : by_rank.back()) block.head_begin += slice * num_heads;
      }
    }
    return by_rank;
  }

  // [T, n, h] of this rank -> [T, n, H] of this rank and its neighbours.
  std::vector<at::Tensor> whole(std::vector<at::Tensor> blocks) const {
    for (at::Tensor& x : blocks) {
      const auto gathered = all_gather(x.unsqueeze(0), slices_);
      x = gathered.permute({1, 2, 0, 3}).flatten(2);
    }
    return blocks;
  }

  Group slices_;
};

int64_t slices_of_head(int64_t num_heads, int num_ranks) {
  return num_ranks / std::gcd(num_heads, int64_t{num_ranks});
}

std::string refusal(int num_ranks, const AttentionShape& heads) {
  const int64_t slices = slices_of_head(heads.spec.num_heads, num_ranks);
  const bool cuts_keys = heads.spec.key_dim % slices == 0;
  if (cuts_keys && heads.spec.value_dim % slices == 0) return "";
  const char* of_values = heads.spec.key_dim == heads.spec.value_dim ? "" : " of values";
  return fmt::format(
      "cannot split {} over {}: each would be cut in {}, and that does not divide head_dim{}, {}",
      counted(heads.spec.num_heads, "attention head"), counted(num_ranks, "rank"),
      counted(slices, "slice"), cuts_keys ? of_values : "",
      cuts_keys ? heads.spec.value_dim : heads.spec.key_dim);
}

void set_slices(const PlanRequest& request, ParallelPlan& plan) {
  plan.num_head_slices = static_cast<int>(slices_of_head(request.num_heads, plan.sequence_size));
}

RankGeometry geometry(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int rank) {
  const int s = plan.num_head_slices;
  const HeadSplit by_holder =
      split_evenly(plan.sequence_size / s, shape.spec.num_heads, shape.spec.num_kv_heads,
                   padded.num_tokens(), /*head_waves=*/1);
  RankGeometry geometry = geometry_of_share(by_holder[rank / s], plan.sequence_size, padded, shape);
  geometry.slice = rank % s;
  geometry.num_slices = s;
  return geometry;
}

/// Slices of heads are exchanged like heads; then s ranks all-gather the slices of their common
/// heads.
AttentionVolumeParts volume(const ParallelPlan& plan, const AttentionShape& shape,
                            const Packing& padded, bool checkpointing, bool output_is_known) {
  const HeadRows rows = rows_that_arrive(plan, shape, padded);
  AttentionVolume heads =
      exchange_volume(rows, shape, /*in_waves=*/false, checkpointing, output_is_known);
  const int64_t gathered = (rows.gathered_query + rows.gathered_kv) * shape.key_bytes() +
                           rows.gathered_kv * shape.value_bytes();
  heads.forward += gathered;
  heads.backward += gathered;  // reduce-scattered
  if (checkpointing) heads.backward += gathered;
  return {heads, {}};
}

/// Adds the slices of heads, which exist until the whole heads have been gathered from
/// `num_head_slices` neighbours.
AttentionMemory memory(const ParallelPlan& plan, const AttentionShape& shape,
                       const Packing& padded) {
  AttentionMemory memory = memory_of_degrees(plan, shape, padded);
  const double t = static_cast<double>(padded.num_tokens() / plan.sequence_size);
  const RowBytes bytes(shape);
  const double slices = t * (static_cast<double>(shape.spec.num_heads) * bytes.query +
                             static_cast<double>(shape.spec.num_kv_heads) * bytes.kv);
  if (plan.num_head_slices > 1) memory.forward += slices;
  return memory;
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return std::make_unique<XtunerUlysses>(mesh.sequence, mesh.slices, kernel);
}

}  // namespace

extern const Method kXtunerUlysses{
    .name = "xtuner-ulysses",
    .keys = {},
    .head_waves = kOneWave,
    .refusal = refusal,
    .ulysses_degrees = all_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = set_slices,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry,
    .context_seconds = keys_at_hand,
    .exchange_seconds = exchanged_in_waves,
    .volume = volume,
    .memory = memory,
    .make = make,
};

}  // namespace longspan
