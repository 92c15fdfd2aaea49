// Attention in a sliding window on ranks that hold some tokens of a row each: a rank fetches the
// keys that its queries see straight from who holds them, and nothing else travels. T: this rank's
// tokens, N: query heads, M: kv heads, H: numbers in a head.
#pragma once

#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/ring_layout.h"

namespace longspan {

/// In step s a rank attends to those keys of rank - s that its queries see, its own first, while
/// the keys of the next step arrive and, in the backward, the gradients of the previous step's keys
/// return to their owner. A step in which a rank sees no keys neither sends nor computes.
///
/// Bytes sent by all ranks together, for S fetched tokens (keys_seen() of the blocks of each rank
/// and each other one), M kv heads with keys of K and values of V numbers, e bytes a number and g a
/// gradient (4; 8 in fp64): forward S M (K + V) e, backward S M (K + V) (e + g).
class FetchedAttention {
 public:
  /// `ring`: the ranks of the layout, in their order. The kernel must outlive it.
  FetchedAttention(Group ring, const RingLayout& layout, const BlockKernel& kernel,
                   const AttentionSpec& spec, const Packing& padded);

  AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                          const at::Tensor& v_TMH) const;
  /// Of out and lse of the whole softmax.
  AttentionGradients backward(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                              const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                              const at::Tensor& out_TNH, const at::Tensor& lse_NT) const;

 private:
  struct Step {
    int owner, receiver;            // who sends us keys, and to whom we send ours
    std::vector<TokenRun> fetched;  // of the owner's tokens
    std::vector<TokenRun> given;    // of ours
    std::vector<Block> blocks;      // of our queries and the fetched tokens
  };
  struct Fetched {
    Pending arrival;
    at::Tensor k, v;
  };
  Fetched fetch(size_t step, const at::Tensor& k_TMH, const at::Tensor& v_TMH) const;

  Group ring_;
  const BlockKernel& kernel_;
  AttentionSpec spec_;
  std::vector<Block> own_;   // of our queries and our keys
  std::vector<Step> steps_;  // the others
};

}  // namespace longspan
