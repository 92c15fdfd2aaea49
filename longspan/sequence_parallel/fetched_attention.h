// Attention in a sliding window over ranks that each hold some tokens of a row. A rank fetches only
// the keys that its queries see, directly from the keys' owners. T: this rank's tokens, N: query
// heads, M: kv heads, H: elements of a head.
#pragma once

#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/ring_layout.h"

namespace longspan {

/// In step s = 0, 1, ... a rank attends to the visible keys of rank - s. Concurrently, the keys of
/// the next step arrive. In the backward, the gradients of the previous step's keys also return to
/// their owner. If no query of a rank sees a key of the step's owner, the owner sends nothing to
/// the rank, and the rank computes nothing.
///
/// Bytes sent by all ranks together, for S fetched tokens (keys_seen() of the blocks of each pair
/// of ranks), M kv heads with keys of K and values of V elements, e bytes per element and g per
/// gradient element (4; 8 in fp64): forward S M (K + V) e, backward S M (K + V) (e + g).
class FetchedAttention {
 public:
  /// `ring`: the ranks of the layout, in the layout's order. `kernel` must outlive this object.
  FetchedAttention(Group ring, const RingLayout& layout, const BlockKernel& kernel,
                   const AttentionSpec& spec, const Packing& padded);

  AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                          const at::Tensor& v_TMH) const;
  /// `inputs` has this rank's keys and values.
  AttentionGradients backward(const AttentionGradientInputs& inputs) const;

 private:
  struct Step {
    int owner, receiver;            // the ranks that send keys to, and receive keys from, this rank
    std::vector<TokenRun> fetched;  // runs of the owner's tokens
    std::vector<TokenRun> given;    // runs of this rank's tokens
    std::vector<Block> blocks;      // this rank's queries, the fetched keys
  };
  struct Fetched {
    Pending arrival;
    at::Tensor k, v;
  };
  Fetched fetch(size_t step, const at::Tensor& k_TMH, const at::Tensor& v_TMH) const;

  Group ring_;
  const BlockKernel& kernel_;
  AttentionSpec spec_;
  std::vector<Block> own_;   // this rank's queries and keys
  std::vector<Step> steps_;  // one for each other rank
};

}  // namespace longspan
