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

/// A ring kind; each is in a file of its own.
struct RingLayout {
  const char* name;  // for messages
  /// As SequenceParallel::token_order_of, for `num_ranks` ranks.
  TokenOrder (*token_order)(const Packing& packing, int64_t multiple, int rank, int num_ranks);
  /// Returns the blocks of visible keys of `owner` for the queries of `rank`, in the local tokens
  /// of each. `padded` is the packing made by token_order; its forks and two-way spans are ignored
  /// here. Every query sees itself among its own rank's keys.
  std::vector<Block> (*blocks)(const Packing& padded, int rank, int owner, int num_ranks);
  /// Returns the number of a rank's tokens (held in row order) before `token`.
  int64_t (*tokens_before)(const Packing& padded, int64_t token, int rank, int num_ranks);
  /// Returns the places of a rank's tokens in the padded row.
  Positions (*places)(const Packing& padded, int rank, int num_ranks);
};

/// Returns the layout's blocks without the pairs that forks mask or that are outside the layer's
/// window, and those of two-way spans.
std::vector<Block> blocks_of(const RingLayout& layout, const Packing& padded, int rank, int owner,
                             int num_ranks, std::optional<int64_t> window);

/// Consecutive tokens of a rank.
struct TokenRun {
  int64_t begin, length;
};
/// Returns the keys that blocks see, in order, without repetition.
std::vector<TokenRun> keys_seen(const std::vector<Block>& blocks);
/// Returns the blocks with keys counted in the concatenation of `runs`. The blocks must see no
/// other keys.
std::vector<Block> over_runs(std::vector<Block> blocks, const std::vector<TokenRun>& runs);

/// Returns the rank whose keys a ring rank holds after `hops` hops on a ring of `num_ranks`. With
/// windows of more than one rank: after `hops` steps of a double ring (ring_pass.h).
int owner_after(int hops, int rank, int num_ranks, int window);

/// Method::geometry of such a ring inside Ulysses of the plan's degree: one pass around the ring
/// for each wave and each of its pieces. In a sliding window each rank fetches only the visible
/// keys, from their owners.
RankGeometry ring_geometry(const RingLayout& layout, const ParallelPlan& plan,
                           const AttentionShape& shape, const Packing& padded, int rank);

}  // namespace longspan
