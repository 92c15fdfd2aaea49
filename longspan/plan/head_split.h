// Assignment of heads and tokens to ranks. The geometry of Ulysses methods (geometry.h) is made
// from this assignment. No torch. T: tokens of the padded row, P: ranks, N: query heads, M: kv
// heads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan {

/// Consecutive heads of consecutive tokens.
struct HeadBlock {
  int64_t head_begin, num_heads, token_begin, num_tokens;
  bool operator==(const HeadBlock&) const = default;
};

/// Queries of one kernel call. The query heads share the kv heads [kv_begin, kv_begin + num_kv) of
/// item kv_item evenly: query head i of the piece uses kv head i / (num_heads / num_kv).
struct AttentionPiece {
  HeadBlock query;
  int kv_item;
  int64_t kv_begin, num_kv;
};

/// A rank's work between two exchanges.
struct HeadWave {
  std::vector<int> fetched;  // kv items that arrive with this wave's queries
  std::vector<AttentionPiece> pieces;
  std::vector<int> released;  // kv items that no later wave reads
};

/// One rank's part of the work. No key of a kv head reaches a rank twice.
struct RankShare {
  std::vector<HeadBlock> kv_items;
  std::vector<HeadWave> waves;
};

/// The shares by rank. Every rank has the same number of waves.
using HeadSplit = std::vector<RankShare>;

/// Ulysses: query heads in P equal runs. Each kv head goes to every rank that has a query head of
/// this kv head. P must divide N. Waves are runs of a rank's heads, as equal as possible, at most N
/// / P waves.
HeadSplit split_evenly(int num_ranks, int64_t num_heads, int64_t num_kv_heads, int64_t num_tokens,
                       int head_waves);

/// The same as split_evenly(), with zero query heads added up to a multiple of P. The zero heads
/// use the last kv head.
HeadSplit split_with_dummy_heads(int num_ranks, int64_t num_heads, int64_t num_kv_heads,
                                 int64_t num_tokens, int head_waves);

/// Concatenates the queries of all heads, and cuts the sequence into P times head_waves parts of
/// equal causal cost. A cut inside a head splits the head's queries. Each part gets the keys that
/// are visible to its queries, within the layer's sliding window if the layer has a window. Any P,
/// N, M.
HeadSplit split_by_cost(int num_ranks, int64_t num_heads, int64_t num_kv_heads,
                        const Packing& packing, int head_waves,
                        std::optional<int64_t> window = std::nullopt);

}  // namespace longspan
