// The geometry of a method as data: the blocks that a rank attends in each step, and the data that
// arrive for the step. Estimates of work and bytes use it, and the real attention takes its blocks
// from the same functions. No torch. P: ranks of a sequence group, T: tokens of the padded row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/head_split.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Consecutive tokens among those that neighbouring ranks hold together, in row order.
struct TokenSpan {
  int first_rank, num_ranks;
  int64_t begin, length;
};

/// Consecutive heads of these tokens.
struct HeadTokens {
  int64_t head_begin, num_heads;
  TokenSpan tokens;
};

/// A call of the attention kernel. Query head i of the call uses kv head i / (queries.num_heads /
/// keys.num_heads) of it. Query heads at or above the layer's number of heads are dummies.
struct AttentionCall {
  HeadTokens queries, keys;
  std::vector<Block> blocks;  // counted in the tokens of the two spans
};

/// Data that reach the rank, then its kernel calls. A span may include tokens of the rank itself,
/// which are not sent.
struct AttentionStep {
  int hop = 0;                             // of travelling keys: number of hops so far
  std::vector<HeadTokens> queries;         // in a head exchange; outputs return the same way
  std::vector<HeadTokens> keys;            // with values, in a head exchange
  std::vector<HeadTokens> context_keys;    // with values, of heads that the rank has itself
  std::vector<TokenSpan> latents;          // latents instead of `keys`
  std::vector<TokenSpan> context_latents;  // latents instead of `context_keys`
  std::vector<AttentionCall> calls;
};

/// The work of one rank. `num_slices` neighbours attend with the same heads, and each returns a
/// slice of the output's elements; queries and keys arrive in such slices and are then gathered.
struct RankGeometry {
  int slice = 0, num_slices = 1;
  std::vector<AttentionStep> steps;
};

HeadTokens on_ranks(const HeadBlock& block, int first_rank, int num_ranks);

/// Returns the blocks of a piece, counted in the tokens of `query` and `kv_item`. Each query sees
/// the keys of its document up to its own, except those of another branch and those outside the
/// layer's window, and the later keys of its two-way span.
std::vector<Block> blocks_of_piece(const HeadBlock& query, const HeadBlock& kv_item,
                                   const Packing& padded, std::optional<int64_t> window);

/// Returns the geometry of one rank's share of a head split, for ranks that hold consecutive parts
/// of the row: one step per wave.
RankGeometry geometry_of_share(const RankShare& share, int num_ranks, const Packing& padded,
                               const AttentionShape& shape);

/// Returns the number of tokens in a span that `rank` does not hold. The span's ranks hold
/// consecutive parts of its tokens, or the span has all of their tokens. `tokens_per_rank`: T / P.
int64_t foreign_tokens(const TokenSpan& span, int rank, int64_t tokens_per_rank);

/// The work of the busiest rank in each hop. Every hop but the first waits for keys, and its output
/// is merged into the earlier one.
struct RankWork {
  double heads = 0;                // query heads of a rank
  std::vector<double> head_pairs;  // pairs of a query and a key of one head, in whole tiles; by hop
  std::vector<int64_t> calls;      // kernel calls; by hop
  std::vector<int64_t> rows;       // queries of a head that attend; by hop
};

/// Over all head waves. `tile`: queries and keys of a tile.
RankWork busiest_rank(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int64_t tile);

}  // namespace longspan
