// The distribution of a row's tokens over the ranks of a ring, and the resulting geometry. No
// torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/plan/geometry.h"
#include "longspan/rows/token_order.h"

namespace longspan {

/// The layout of one ring method. Each layout is in a file of its own.
struct RingLayout {
  const char* name;  // for messages
  /// Same contract as SequenceParallel::token_order_of(), for `num_ranks` ranks.
  TokenOrder (*token_order)(const Packing& packing, int64_t multiple, int rank, int num_ranks);
  /// Returns the blocks between the queries of `rank` and the visible keys of `owner`. Indices are
  /// local tokens of `rank` and of `owner`. `padded`: the packing that token_order returns; forks
  /// and two-way spans are ignored. With owner == rank, every query sees its own key.
  std::vector<Block> (*blocks)(const Packing& padded, int rank, int owner, int num_ranks);
  /// Returns the number of a rank's tokens before `token` of the row. A rank holds its tokens in
  /// row order.
  int64_t (*tokens_before)(const Packing& padded, int64_t token, int rank, int num_ranks);
  /// Returns the places of a rank's tokens in the padded row.
  Positions (*places)(const Packing& padded, int rank, int num_ranks);
};

/// Returns the layout's blocks, without the pairs that forks mask and the pairs outside the layer's
/// window. Adds the blocks of two-way spans.
std::vector<Block> blocks_of(const RingLayout& layout, const Packing& padded, int rank, int owner,
                             int num_ranks, std::optional<int64_t> window);

/// Consecutive tokens of a rank.
struct TokenRun {
  int64_t begin, length;
};
/// Returns the keys that any of `blocks` sees, in order, without repetition.
std::vector<TokenRun> keys_seen(const std::vector<Block>& blocks);
/// Returns the blocks with key indices relative to the concatenation of `runs`. `runs` must contain
/// all keys of the blocks.
std::vector<Block> over_runs(std::vector<Block> blocks, const std::vector<TokenRun>& runs);

/// Returns the owner of the keys that a ring rank holds after `hops` hops on a ring of `num_ranks`.
/// `window`: ranks of the inner ring; with more than one rank, hops are steps of a double ring
/// (ring_pass.h).
int owner_after(int hops, int rank, int num_ranks, int window);

/// Method::geometry of a ring inside Ulysses, with the plan's degrees: one pass around the ring for
/// each piece of each wave. In a sliding window each rank fetches only the visible keys, from their
/// owners.
RankGeometry ring_geometry(const RingLayout& layout, const ParallelPlan& plan,
                           const AttentionShape& shape, const Packing& padded, int rank);

}  // namespace longspan
