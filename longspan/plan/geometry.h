// The geometry of a method as data: the blocks of attention that a rank computes in each step, and
// the data that arrive for the step. Estimates of work and bytes use the geometry. The real
// attention takes its blocks from the same functions. No torch. P: ranks of a sequence group, T:
// tokens of the padded row.
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

/// Consecutive tokens among the tokens of neighbouring ranks, in row order.
struct TokenSpan {
  int first_rank, num_ranks;
  int64_t begin, length;
};

/// Consecutive heads of a span of tokens.
struct HeadTokens {
  int64_t head_begin, num_heads;
  TokenSpan tokens;
};

/// A call of the attention kernel. Query head i of the call uses kv head i / (queries.num_heads /
/// keys.num_heads) of the call. A query head is a zero head (padding) if its index in the layer is
/// at least the layer's number of heads.
struct AttentionCall {
  HeadTokens queries, keys;
  std::vector<Block> blocks;  // token indices are relative to the two spans
};

/// One step: the rank receives data, then makes its kernel calls. A span may include the rank's own
/// tokens, which are not sent.
struct AttentionStep {
  int hop = 0;                             // number of hops of the keys before this step
  std::vector<HeadTokens> queries;         // in a head exchange; outputs return by the same route
  std::vector<HeadTokens> keys;            // with values, in a head exchange
  std::vector<HeadTokens> context_keys;    // with values, of the rank's own heads
  std::vector<TokenSpan> latents;          // latents instead of `keys`
  std::vector<TokenSpan> context_latents;  // latents instead of `context_keys`
  std::vector<AttentionCall> calls;
};

/// The work of one rank. `num_slices` neighbours attend with the same heads. Queries and keys
/// arrive in slices of head_dim, one slice per neighbour, and are then all-gathered. Each neighbour
/// returns its slice of the output.
struct RankGeometry {
  int slice = 0, num_slices = 1;
  std::vector<AttentionStep> steps;
};

HeadTokens on_ranks(const HeadBlock& block, int first_rank, int num_ranks);

/// Returns the blocks of a piece. Token indices are relative to `query` and `kv_item`. Each query
/// sees the later keys of its two-way span, and the keys of its document up to its own position,
/// except keys of another branch and keys outside the layer's window.
std::vector<Block> blocks_of_piece(const HeadBlock& query, const HeadBlock& kv_item,
                                   const Packing& padded, std::optional<int64_t> window);

/// Returns the geometry of one rank's share of a head split, for ranks that hold consecutive parts
/// of the row: one step per wave.
RankGeometry geometry_of_share(const RankShare& share, int num_ranks, const Packing& padded,
                               const AttentionShape& shape);

/// Returns the number of tokens in `span` that `rank` does not hold. Requires that the span's ranks
/// hold consecutive parts of the row, or that the span has all tokens of these ranks.
/// `tokens_per_rank`: T / P.
int64_t foreign_tokens(const TokenSpan& span, int rank, int64_t tokens_per_rank);

/// The work of the busiest rank in each hop. Every hop but the first waits for keys and merges its
/// output into the output of earlier hops.
struct RankWork {
  double heads = 0;                // query heads of the rank
  std::vector<double> head_pairs;  // pairs of a query and a key of one head, in whole tiles; by hop
  std::vector<int64_t> calls;      // kernel calls; by hop
  std::vector<int64_t> rows;       // queries of a head that attend; by hop
};

/// Returns the elementwise maximum over ranks. Counts all head waves together. `tile`: number of
/// queries, and of keys, in a tile.
RankWork busiest_rank(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int64_t tile);

}  // namespace longspan
