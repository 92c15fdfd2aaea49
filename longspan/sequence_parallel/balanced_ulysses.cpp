// Balanced Ulysses: any number of ranks, any heads, nothing wasted.
// t: this rank's tokens, N: query heads, M: kv heads, H: head dim, P: ranks.
//
// The query heads lie on a line that is cut in P parts of equal length. A cut inside a head splits
// that head's queries where the same share of their causal cost lies before, so the early part
// needs only the early keys. A part meets few kv heads, and a rank gets each of their keys that it
// needs once. No dummy head, no attention done twice. With more ranks than heads every rank has a
// part of one head's queries and the keys before them: context parallelism by gathering what is
// needed.
//
// Sent by all ranks, each way: the tokens of every piece (plan/head_split.h) that its rank does not
// hold already, for queries and outputs, and of every kv item twice.
#include "longspan/sequence_parallel/exchanged_attention.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/share_of.h"

namespace longspan {
namespace {

class BalancedUlysses : public SequenceParallel {
 public:
  BalancedUlysses(Group group, const BlockKernel& kernel, int head_waves)
      : group_(std::move(group)), kernel_(kernel), head_waves_(head_waves) {}

  at::Tensor attend(const at::Tensor& q_tNH, const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                    const Packing& packing) override {
    const HeadSplit split =
        split_by_cost(group_.size(), q_tNH.size(1), k_tMH.size(1), packing, head_waves_);
    return attend_exchanged(q_tNH, k_tMH, v_tMH, split, group_, piece_attention(kernel_, packing));
  }

  TokenOrder token_order(const Packing& packing, int64_t multiple) const override {
    return consecutive_order(packing, multiple, group_);
  }

 private:
  Group group_;
  const BlockKernel& kernel_;
  int head_waves_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_balanced_ulysses(Group group, const BlockKernel& kernel,
                                                        int head_waves) {
  return std::make_unique<BalancedUlysses>(std::move(group), kernel, head_waves);
}

}  // namespace longspan
