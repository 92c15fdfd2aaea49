#include "longspan/sequence_parallel/ring_layout.h"

#include "longspan/attention/masked_rectangles.h"

namespace longspan {

std::vector<Block> blocks_of(const RingLayout& layout, const Packing& padded, int rank, int owner,
                             int num_ranks) {
  const auto tokens_of = [&](int of) -> TokensBefore {
    return [&layout, &padded, of, num_ranks](int64_t token) {
      return layout.tokens_before(padded, token, of, num_ranks);
    };
  };
  return without_masked_pairs(layout.blocks(padded, rank, owner, num_ranks),
                              masked_rectangles_of(padded, tokens_of(rank), tokens_of(owner)));
}

int owner_after(int hops, int rank, int num_ranks, int window) {
  const int outer = hops / window, inner = hops % window, num_windows = num_ranks / window;
  return (rank / window - outer + num_windows) % num_windows * window +
         (rank % window - inner + window) % window;
}

RankGeometry ring_geometry(const RingLayout& layout, const ParallelPlan& plan,
                           const AttentionShape& shape, const Packing& padded, int rank) {
  const int R = plan.ring_size, U = plan.ulysses_size, ring_rank = rank / U;
  const int64_t num_tokens = padded.num_tokens() / R;  // of a ring rank
  const auto on_ring_rank = [&](const HeadBlock& block, int of) {
    return on_ranks(block, of * U, U);
  };
  const RankShare share = split_evenly(U, shape.spec.num_heads, shape.spec.num_kv_heads, num_tokens,
                                       plan.head_waves)[rank % U];
  RankGeometry geometry;
  for (const HeadWave& wave : share.waves) {
    bool arrives = true;  // once a wave
    for (const AttentionPiece& piece : wave.pieces) {
      const HeadBlock& item = share.kv_items[piece.kv_item];
      const HeadBlock kv_heads{item.head_begin + piece.kv_begin, piece.num_kv, 0, num_tokens};
      for (int hop = 0; hop < R; ++hop) {
        const int owner = owner_after(hop, ring_rank, R, plan.window_size);
        AttentionStep& step = geometry.steps.emplace_back();
        step.hop = hop;
        if (arrives) {
          for (const int fetched : wave.fetched) {
            step.keys.push_back(on_ring_rank(share.kv_items[fetched], ring_rank));
          }
          for (const AttentionPiece& other : wave.pieces) {
            step.queries.push_back(on_ring_rank(other.query, ring_rank));
          }
          arrives = false;
        }
        if (hop > 0) step.context_keys.push_back(on_ring_rank(kv_heads, owner));
        step.calls.push_back({on_ring_rank(piece.query, ring_rank), on_ring_rank(kv_heads, owner),
                              blocks_of(layout, padded, ring_rank, owner, R)});
      }
    }
  }
  return geometry;
}

}  // namespace longspan
