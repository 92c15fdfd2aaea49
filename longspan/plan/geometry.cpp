#include "longspan/plan/geometry.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "longspan/attention/masked_rectangles.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/plan/method.h"

namespace longspan {

HeadTokens on_ranks(const HeadBlock& block, int first_rank, int num_ranks) {
  return {block.head_begin, block.num_heads,
          TokenSpan{first_rank, num_ranks, block.token_begin, block.num_tokens}};
}

std::vector<Block> blocks_of_piece(const HeadBlock& query, const HeadBlock& kv_item,
                                   const Packing& padded) {
  std::vector<Block> blocks;
  const auto& boundaries = padded.boundaries();
  const int64_t end = query.token_begin + query.num_tokens;
  int64_t document = std::upper_bound(boundaries.begin(), boundaries.end(), query.token_begin) -
                     boundaries.begin() - 1;
  for (; document < padded.num_documents() && padded.begin(document) < end; ++document) {
    const int64_t q_begin = std::max(query.token_begin, padded.begin(document));
    const int64_t q_end = std::min(end, padded.end(document));
    if (q_begin >= q_end) continue;
    blocks.push_back({q_begin - query.token_begin, q_end - q_begin,
                      padded.begin(document) - kv_item.token_begin, q_end - padded.begin(document),
                      true, q_begin - padded.begin(document)});
  }
  return without_masked_pairs(blocks,
                              masked_rectangles_of(
                                  padded, [&](int64_t token) { return token - query.token_begin; },
                                  [&](int64_t token) { return token - kv_item.token_begin; }));
}

RankGeometry geometry_of_share(const RankShare& share, int num_ranks, const Packing& padded) {
  RankGeometry geometry;
  for (const HeadWave& wave : share.waves) {
    AttentionStep& step = geometry.steps.emplace_back();
    for (const int item : wave.fetched) {
      step.keys.push_back(on_ranks(share.kv_items[item], 0, num_ranks));
    }
    for (const AttentionPiece& piece : wave.pieces) {
      step.queries.push_back(on_ranks(piece.query, 0, num_ranks));
      const HeadBlock& item = share.kv_items[piece.kv_item];
      AttentionCall& call = step.calls.emplace_back();
      call.queries = step.queries.back();
      call.keys = on_ranks(item, 0, num_ranks);
      call.keys.head_begin += piece.kv_begin;
      call.keys.num_heads = piece.num_kv;
      call.blocks = blocks_of_piece(piece.query, item, padded);
    }
  }
  return geometry;
}

int64_t foreign_tokens(const TokenSpan& span, int rank, int64_t tokens_per_rank) {
  if (rank < span.first_rank || rank >= span.first_rank + span.num_ranks) return span.length;
  const int64_t own = (rank - span.first_rank) * tokens_per_rank;
  const int64_t begin = std::max(span.begin, own);
  const int64_t end = std::min(span.begin + span.length, own + tokens_per_rank);
  return span.length - std::max<int64_t>(0, end - begin);
}

RankWork busiest_rank(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int64_t tile) {
  ParallelPlan in_one_wave = plan;
  in_one_wave.head_waves = 1;
  RankWork most;
  for (int rank = 0; rank < plan.sequence_size; ++rank) {
    RankWork work;
    for (const AttentionStep& step :
         plan.method->geometry(in_one_wave, shape, padded, rank).steps) {
      const auto hop = static_cast<size_t>(step.hop);
      work.head_pairs.resize(std::max(work.head_pairs.size(), hop + 1));
      work.calls.resize(work.head_pairs.size());
      for (const AttentionCall& call : step.calls) {
        const auto heads = static_cast<double>(call.queries.num_heads);
        work.head_pairs[hop] += heads * pairs_of(call.blocks, tile);
        if (!call.blocks.empty()) work.calls[hop] += 1;
        if (hop == 0) work.heads += heads;
      }
    }
    most.heads = std::max(most.heads, work.heads);
    most.head_pairs.resize(std::max(most.head_pairs.size(), work.head_pairs.size()));
    most.calls.resize(most.head_pairs.size());
    for (size_t hop = 0; hop < work.head_pairs.size(); ++hop) {
      most.head_pairs[hop] = std::max(most.head_pairs[hop], work.head_pairs[hop]);
      most.calls[hop] = std::max(most.calls[hop], work.calls[hop]);
    }
  }
  return most;
}

namespace {

std::vector<int64_t> places_of(const TokenSpan& span,
                               const std::vector<std::vector<int64_t>>& places) {
  std::vector<int64_t> all;
  for (int rank = span.first_rank; rank < span.first_rank + span.num_ranks; ++rank) {
    all.insert(all.end(), places[rank].begin(), places[rank].end());
  }
  std::sort(all.begin(), all.end());
  return {all.begin() + span.begin, all.begin() + span.begin + span.length};
}

// Places as a window counts them: a forked document's second branch goes on from its prompt.
std::vector<int64_t> window_places(std::vector<int64_t> places, const Packing& padded) {
  if (!padded.has_forks()) return places;
  const auto& boundaries = padded.boundaries();
  for (int64_t& place : places) {
    const int64_t document =
        std::upper_bound(boundaries.begin(), boundaries.end(), place) - boundaries.begin() - 1;
    const auto& fork = padded.fork(document);
    if (fork && place >= padded.begin(document) + fork->second) place -= fork->second - fork->first;
  }
  return places;
}

// The same blocks, so that the places of each one's queries ascend: those of the first branch and
// those of the second may see the same part of their prompt.
std::vector<Block> split_at_branches(const std::vector<Block>& blocks,
                                     const std::vector<int64_t>& query_places) {
  std::vector<Block> parts;
  for (const Block& block : blocks) {
    int64_t begin = block.q_begin;
    const int64_t end = block.q_begin + block.q_length;
    for (int64_t query = begin + 1; query < end; ++query) {
      if (query_places[query] > query_places[query - 1]) continue;
      add_part(parts, block, begin, query, 0, block.k_length);
      begin = query;
    }
    if (begin == block.q_begin) {
      parts.push_back(block);
    } else {
      add_part(parts, block, begin, end, 0, block.k_length);
    }
  }
  return parts;
}

struct Range {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  void include(int64_t other_begin, int64_t other_end) {
    *this = empty() ? Range{other_begin, other_end}
                    : Range{std::min(begin, other_begin), std::max(end, other_end)};
  }
};

bool same_ranks(const TokenSpan& a, const TokenSpan& b) {
  return a.first_rank == b.first_rank && a.num_ranks == b.num_ranks;
}

// What calls of these steps see of the keys that have arrived, counted in the tokens of the span's
// ranks.
Range keys_seen(const HeadTokens& arrived, const std::vector<AttentionStep>& steps) {
  Range seen;
  for (const AttentionStep& step : steps) {
    for (const AttentionCall& call : step.calls) {
      const bool shares_heads = call.keys.head_begin < arrived.head_begin + arrived.num_heads &&
                                arrived.head_begin < call.keys.head_begin + call.keys.num_heads;
      if (!shares_heads || !same_ranks(call.keys.tokens, arrived.tokens)) continue;
      for (const Block& block : call.blocks) {
        const int64_t begin = call.keys.tokens.begin + block.k_begin;
        seen.include(begin, begin + block.k_length);
      }
    }
  }
  return seen;
}

}  // namespace

RankGeometry within_window(const RankGeometry& geometry, int64_t window, const Packing& padded,
                           const std::vector<std::vector<int64_t>>& places) {
  RankGeometry cut = geometry;
  for (AttentionStep& step : cut.steps) {
    for (AttentionCall& call : step.calls) {
      const auto queries = window_places(places_of(call.queries.tokens, places), padded);
      const auto keys = window_places(places_of(call.keys.tokens, places), padded);
      call.blocks = within_window(
          split_at_branches(call.blocks, queries), window,
          [&](int64_t token) { return queries[token]; },
          [&](int64_t token) { return keys[token]; });
    }
    std::erase_if(step.calls, [](const AttentionCall& call) { return call.blocks.empty(); });
  }
  for (AttentionStep& step : cut.steps) {
    for (std::vector<HeadTokens>* arriving : {&step.keys, &step.context_keys}) {
      std::vector<HeadTokens> needed;
      for (HeadTokens heads : *arriving) {
        const Range seen = keys_seen(heads, cut.steps);
        const int64_t begin = std::max(seen.begin, heads.tokens.begin);
        const int64_t end = std::min(seen.end, heads.tokens.begin + heads.tokens.length);
        if (begin >= end) continue;
        heads.tokens.begin = begin;
        heads.tokens.length = end - begin;
        needed.push_back(heads);
      }
      *arriving = std::move(needed);
    }
  }
  return cut;
}

}  // namespace longspan
