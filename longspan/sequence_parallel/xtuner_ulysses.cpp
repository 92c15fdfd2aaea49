// XTuner-Ulysses: where P does not divide the heads, each head is cut along H in s = P / gcd(N, P)
// slices; slices are exchanged as heads are, and s neighbouring ranks gather the heads that they
// hold the slices of. All s then attend with the same heads, and each returns its slice. t: this
// rank's tokens, T = P t, N: query heads, M: kv heads, n, m: those of this rank's neighbours, H:
// head dim, h = H / s.
//
// Sent by a rank, each way: (P-1)/P of its tokens' query and output heads, the slices of kv heads,
// and (s-1) times what it received of q, k and v (gathered; in the backward reduce-scattered).
#include <ATen/ATen.h>

#include "longspan/comm/differentiable.h"
#include "longspan/sequence_parallel/exchanged_attention.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/share_of.h"

namespace longspan {
namespace {

class XtunerUlysses : public SequenceParallel {
 public:
  XtunerUlysses(Group group, Group slices, const BlockKernel& kernel)
      : group_(std::move(group)), slices_(std::move(slices)), kernel_(kernel) {}

  at::Tensor attend(const at::Tensor& q_tNH, const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                    const Packing& packing) override {
    const int num_holders = group_.size() / slices_.size();  // of different heads
    const int64_t N = q_tNH.size(1), M = k_tMH.size(1), t = q_tNH.size(0);
    const HeadSplit by_holder = split_evenly(num_holders, N, M, t * group_.size(), 1);
    const BlocksByRank queries = of_slices(query_blocks(by_holder, 0), N);
    const BlocksByRank kv = of_slices(fetched_blocks(by_holder, 0), M);
    const auto q = start_tokens_to_heads(sliced(q_tNH), queries, group_);
    const auto k = start_tokens_to_heads(sliced(k_tMH), kv, group_);
    const auto v = start_tokens_to_heads(sliced(v_tMH), kv, group_);
    ExchangedHeads heads;
    heads.queries = whole(finish_tokens_to_heads(q));
    heads.k_items = whole(finish_tokens_to_heads(k));
    heads.v_items = whole(finish_tokens_to_heads(v));
    const RankShare& share = by_holder[group_.rank() / slices_.size()];
    std::vector<at::Tensor> outs =
        attend_pieces(share, share.waves[0], heads, piece_attention(kernel_, packing));
    const int64_t h = q_tNH.size(2) / slices_.size();
    for (at::Tensor& out : outs) out = out.narrow(2, slices_.rank() * h, h);
    const at::Tensor out_tNh =
        finish_heads_to_tokens(start_heads_to_tokens(outs, queries, group_, t));
    return out_tNh.view({t, slices_.size(), N, h}).transpose(1, 2).flatten(2);
  }

  TokenOrder token_order(const Packing& packing, int64_t multiple) const override {
    return consecutive_order(packing, multiple, group_);
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

  Group group_, slices_;
  const BlockKernel& kernel_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_xtuner_ulysses(Group group, Group slices,
                                                      const BlockKernel& kernel) {
  return std::make_unique<XtunerUlysses>(std::move(group), std::move(slices), kernel);
}

}  // namespace longspan
