// The geometry of a method as data: which blocks a rank attends in each step, and what reaches it
// for that. Estimates, loads and bytes are computed from it, and the attention that runs takes its
// blocks from the same functions. No torch.
// P: ranks of a sequence group, T: tokens of the padded row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/head_split.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Consecutive ones of the tokens that neighbouring ranks hold together, in the order of the row.
struct TokenSpan {
  int first_rank, num_ranks;
  int64_t begin, length;
};

/// Consecutive heads of them.
struct HeadTokens {
  int64_t head_begin, num_heads;
  TokenSpan tokens;
};

/// A call of the attention kernel. Query head i of it uses kv head i / (queries.num_heads /
/// keys.num_heads) of it. Query heads from the layer's number of heads on are added ones.
struct AttentionCall {
  HeadTokens queries, keys;
  std::vector<Block> blocks;  // counted in the tokens of the two spans
};

/// What reaches the rank, and what it then attends. A span may hold tokens of the rank itself,
/// which stay where they are.
struct AttentionStep {
  int hop = 0;                             // of keys that travel: how many hops they have made
  std::vector<HeadTokens> queries;         // in exchange for other heads; outputs go the way back
  std::vector<HeadTokens> keys;            // and values, in exchange for other heads
  std::vector<HeadTokens> context_keys;    // and values, of heads that the rank has itself
  std::vector<TokenSpan> latents;          // in the place of `keys`: what they are made of
  std::vector<TokenSpan> context_latents;  // in the place of `context_keys`
  std::vector<AttentionCall> calls;
};

/// What one rank does. `num_slices` neighbours attend with the same heads, and each returns a slice
/// of the output's numbers; queries and keys arrive in such slices, which they then gather.
struct RankGeometry {
  int slice = 0, num_slices = 1;
  std::vector<AttentionStep> steps;
};

HeadTokens on_ranks(const HeadBlock& block, int first_rank, int num_ranks);

/// Each document's queries among those of `query` see their document's keys up to their own, less
/// those of a branch that they are not of, and those outside of the layer's window. Counted in the
/// tokens of the two.
std::vector<Block> blocks_of_piece(const HeadBlock& query, const HeadBlock& kv_item,
                                   const Packing& padded, std::optional<int64_t> window);

/// Of one rank's share of a split over ranks that hold the row in consecutive parts: a step a wave.
RankGeometry geometry_of_share(const RankShare& share, int num_ranks, const Packing& padded,
                               const AttentionShape& shape);

/// Tokens of a span that `rank` does not hold. The span's ranks hold consecutive parts of its
/// tokens, or it has all of their tokens. `tokens_per_rank`: T / P.
int64_t foreign_tokens(const TokenSpan& span, int rank, int64_t tokens_per_rank);

/// The work of the busiest rank in each hop. Every hop but the first waits for keys, and its output
/// is merged into what there is.
struct RankWork {
  double heads = 0;                // query heads of a rank
  std::vector<double> head_pairs;  // a query and a key of one head, in whole tiles; by hop
  std::vector<int64_t> calls;      // of the kernel; by hop
  std::vector<int64_t> rows;       // queries of a head that attend; by hop
};

/// All head waves together. `tile`: queries and keys of a tile.
RankWork busiest_rank(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int64_t tile);

}  // namespace longspan
