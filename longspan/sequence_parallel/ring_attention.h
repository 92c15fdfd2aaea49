// Attention with keys that travel: what the ring kinds share. A kind is a layout, in a file of its
// own.
#pragma once

#include <memory>
#include <vector>

#include "longspan/sequence_parallel/ring_pass.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// How the tokens of a row lie on the ranks.
struct RingLayout {
  const char* name;  // for messages
  /// As SequenceParallel::token_order_of, of so many ranks.
  TokenOrder (*token_order)(const Packing& packing, int64_t multiple, int rank, int num_ranks);
  /// What the queries of `rank` see of the keys of `owner`, in the local tokens of each. `padded`
  /// is the packing that token_order made; its forks do not matter here. Every query sees itself
  /// among its own rank's keys.
  std::vector<Block> (*blocks)(const Packing& padded, int rank, int owner, int num_ranks);
  /// How many of a rank's tokens, which it holds in the order of the row, come before `token`.
  int64_t (*tokens_before)(const Packing& padded, int64_t token, int rank, int num_ranks);
};

/// The keys and values of every rank go round; the parts of each query's softmax are merged in fp32
/// (fp64 for fp64). A step in which nothing is seen computes nothing.
///
/// Bytes sent by all R ranks together, for a padded row of T tokens, M kv heads with keys of K and
/// values of V numbers, e bytes a number and g a gradient (4; 8 in fp64): forward (R - 1) T M (K +
/// V) e, backward (R - 1) T M (K + V) (e + g).
std::unique_ptr<SequenceParallel> make_ring_attention(Rings rings, RingLayout layout,
                                                      const BlockKernel& kernel);

/// The same in zigzag order, for messages under this name.
std::unique_ptr<SequenceParallel> make_zigzag_ring(Rings rings, const char* name,
                                                   const BlockKernel& kernel);

}  // namespace longspan
