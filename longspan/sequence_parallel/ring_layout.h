// How the tokens of a row lie on the ranks of a ring, and the geometry that follows. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/data/token_order.h"
#include "longspan/plan/geometry.h"

namespace longspan {

/// A ring kind, in a file of its own.
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
  /// Where they are in the padded row.
  Positions (*places)(const Packing& padded, int rank, int num_ranks);
};

/// The layout's blocks without the pairs that forks mask, and those outside of the layer's window.
std::vector<Block> blocks_of(const RingLayout& layout, const Packing& padded, int rank, int owner,
                             int num_ranks, std::optional<int64_t> window);

/// Consecutive tokens of a rank.
struct TokenRun {
  int64_t begin, length;
};
/// The keys that blocks see: in their order, none twice.
std::vector<TokenRun> keys_seen(const std::vector<Block>& blocks);
/// The blocks, which see no other keys than those of `runs`, as blocks over these keys alone, one
/// run behind the other.
std::vector<Block> over_runs(std::vector<Block> blocks, const std::vector<TokenRun>& runs);

/// The rank whose keys a ring rank holds after so many hops on a ring of `num_ranks`. With windows
/// of more than one rank, after so many steps of a double ring (ring_pass.h).
int owner_after(int hops, int rank, int num_ranks, int window);

/// Method::geometry of such a ring inside Ulysses of the plan's degree: for each wave and each of
/// its pieces a pass round the ring. In a sliding window each
/// rank fetches the keys that its queries see from the rank that holds them, and no others.
RankGeometry ring_geometry(const RingLayout& layout, const ParallelPlan& plan,
                           const AttentionShape& shape, const Packing& padded, int rank);

}  // namespace longspan
