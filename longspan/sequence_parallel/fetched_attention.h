// Attention in a sliding window over ranks that each hold some tokens of a row: a rank fetches the
// keys that its queries see directly from their owners, and nothing else is sent. T: this rank's
// tokens, N: query heads, M: kv heads, H: elements of a head.
#pragma once

#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/ring_layout.h"

namespace longspan {

/// In step s a rank attends to the visible keys of rank - s, beginning with its own. Meanwhile the
/// keys of the next step arrive and, in the backward, the gradients of the previous step's keys
/// return to their owner. A step in which a rank sees no keys neither sends nor computes.
///
/// Bytes sent by all ranks together, for S fetched tokens (keys_seen() of the blocks of each pair
/// of ranks), M kv heads with keys of K and values of V elements, e bytes per element and g per
/// gradient element (4; 8 in fp64): forward S M (K + V) e, backward S M (K + V) (e + g).
class FetchedAttention {
 public:
  /// `ring`: the ranks of the layout, in order. The kernel must outlive this object.
  FetchedAttention(Group ring, const RingLayout& layout, const BlockKernel& kernel,
                   const AttentionSpec& spec, const Packing& padded);

  AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                          const at::Tensor& v_TMH) const;
  /// Keys and values are those of this rank.
  AttentionGradients backward(const AttentionGradientInputs& inputs) const;

 private:
  struct Step {
    int owner, receiver;            // who sends us keys, and who receives ours
    std::vector<TokenRun> fetched;  // among the owner's tokens
    std::vector<TokenRun> given;    // among ours
    std::vector<Block> blocks;      // our queries, the fetched tokens
  };
  struct Fetched {
    Pending arrival;
    at::Tensor k, v;
  };
  Fetched fetch(size_t step, const at::Tensor& k_TMH, const at::Tensor& v_TMH) const;

  Group ring_;
  const BlockKernel& kernel_;
  AttentionSpec spec_;
  std::vector<Block> own_;   // our queries, our keys
  std::vector<Step> steps_;  // for the other ranks
};

}  // namespace longspan
