#include "longspan/sequence_parallel/ring_layout.h"

#include <algorithm>

#include "longspan/attention/masked_rectangles.h"
#include "longspan/attention/two_way_blocks.h"

namespace longspan {

std::vector<Block> blocks_of(const RingLayout& layout, const Packing& padded, int rank, int owner,
                             int num_ranks, std::optional<int64_t> window) {
  const auto tokens_of = [&](int of) -> TokensBefore {
    return [&layout, &padded, of, num_ranks](int64_t token) {
      return layout.tokens_before(padded, token, of, num_ranks);
    };
  };
  std::vector<Block> blocks =
      without_masked_pairs(layout.blocks(padded, rank, owner, num_ranks),
                           masked_rectangles_of(padded, tokens_of(rank), tokens_of(owner)));
  if (!window && padded.two_way().empty()) return blocks;
  const Positions queries = layout.places(padded, rank, num_ranks),
                  keys = layout.places(padded, owner, num_ranks);
  blocks = within_window(blocks, window, window_positions(queries, padded),
                         window_positions(keys, padded));
  add_two_way_blocks(blocks, padded, queries, keys);
  return blocks;
}

std::vector<TokenRun> keys_seen(const std::vector<Block>& blocks) {
  std::vector<TokenRun> seen;
  for (const Block& block : blocks) {
    if (block.q_length > 0 && block.k_length > 0) seen.push_back({block.k_begin, block.k_length});
  }
  std::ranges::sort(seen, {}, &TokenRun::begin);
  std::vector<TokenRun> runs;
  for (const TokenRun& run : seen) {
    const int64_t end = runs.empty() ? -1 : runs.back().begin + runs.back().length;
    if (run.begin <= end) {
      runs.back().length = std::max(end, run.begin + run.length) - runs.back().begin;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

std::vector<Block> over_runs(std::vector<Block> blocks, const std::vector<TokenRun>& runs) {
  for (Block& block : blocks) {
    int64_t before = 0;
    for (const TokenRun& run : runs) {
      if (block.k_begin < run.begin + run.length) {
        block.k_begin += before - run.begin;
        break;
      }
      before += run.length;
    }
  }
  return blocks;
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
  const std::optional<int64_t> window = shape.spec.window;
  const bool latents = passes_latents(shape.spec, U, plan.head_waves);
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
        const int owner = owner_after(hop, ring_rank, R, window ? 1 : plan.window_size);
        AttentionStep& step = geometry.steps.emplace_back();
        step.hop = hop;
        if (arrives) {
          for (const int fetched : wave.fetched) {
            if (latents) break;
            step.keys.push_back(on_ring_rank(share.kv_items[fetched], ring_rank));
          }
          if (latents) step.latents.push_back({ring_rank * U, U, 0, num_tokens});
          for (const AttentionPiece& other : wave.pieces) {
            step.queries.push_back(on_ring_rank(other.query, ring_rank));
          }
          arrives = false;
        }
        std::vector<Block> blocks = blocks_of(layout, padded, ring_rank, owner, R, window);
        if (hop > 0 && latents) {
          step.context_latents.push_back(on_ring_rank(kv_heads, owner).tokens);
        } else if (hop > 0 && !window) {
          step.context_keys.push_back(on_ring_rank(kv_heads, owner));
        }
        if (hop > 0 && window) {
          for (const TokenRun& run : keys_seen(blocks)) {
            step.context_keys.push_back(on_ring_rank(
                {kv_heads.head_begin, kv_heads.num_heads, run.begin, run.length}, owner));
          }
        }
        step.calls.push_back({on_ring_rank(piece.query, ring_rank), on_ring_rank(kv_heads, owner),
                              std::move(blocks)});
      }
    }
  }
  return geometry;
}

}  // namespace longspan
