#include "longspan/plan/geometry.h"

#include <algorithm>

#include "longspan/attention/masked_rectangles.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/attention/two_way_blocks.h"
#include "longspan/registers/method.h"

namespace longspan {

HeadTokens on_ranks(const HeadBlock& block, int first_rank, int num_ranks) {
  return {block.head_begin, block.num_heads,
          TokenSpan{first_rank, num_ranks, block.token_begin, block.num_tokens}};
}

namespace {

/// Returns the beginning of the document in which an item's keys begin.
int64_t first_of_document(const HeadBlock& kv_item, const Packing& padded) {
  const auto& boundaries = padded.boundaries();
  return *(std::upper_bound(boundaries.begin(), boundaries.end() - 1, kv_item.token_begin) - 1);
}

}  // namespace

std::vector<Block> blocks_of_piece(const HeadBlock& query, const HeadBlock& kv_item,
                                   const Packing& padded, std::optional<int64_t> window) {
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
  // Blocks may begin at keys before the item, which the window hides.
  blocks = without_masked_pairs(
      blocks, masked_rectangles_of(
                  padded, [&](int64_t token) { return token - query.token_begin; },
                  [&](int64_t token) { return token - kv_item.token_begin; }));
  if (window) {
    const int64_t keys_begin = first_of_document(kv_item, padded);
    for (Block& block : blocks) block.k_begin += kv_item.token_begin - keys_begin;
    const Positions keys =
        window_positions(keys_begin, kv_item.token_begin + kv_item.num_tokens - keys_begin, padded);
    blocks = within_window(blocks, window,
                           window_positions(query.token_begin, query.num_tokens, padded), keys);
    for (Block& block : blocks) block.k_begin -= kv_item.token_begin - keys_begin;
  }
  add_two_way_blocks(blocks, padded, {{0, query.num_tokens, query.token_begin}},
                     {{0, kv_item.num_tokens, kv_item.token_begin}});
  return blocks;
}

RankGeometry geometry_of_share(const RankShare& share, int num_ranks, const Packing& padded,
                               const AttentionShape& shape) {
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
      call.blocks = blocks_of_piece(piece.query, item, padded, shape.spec.window);
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
      work.rows.resize(work.head_pairs.size());
      for (const AttentionCall& call : step.calls) {
        const auto heads = static_cast<double>(call.queries.num_heads);
        work.head_pairs[hop] += heads * pairs_of(call.blocks, tile);
        if (!call.blocks.empty()) work.calls[hop] += 1;
        for (const Block& block : call.blocks) work.rows[hop] += block.q_length;
        if (hop == 0) work.heads += heads;
      }
    }
    most.heads = std::max(most.heads, work.heads);
    most.head_pairs.resize(std::max(most.head_pairs.size(), work.head_pairs.size()));
    most.calls.resize(most.head_pairs.size());
    most.rows.resize(most.head_pairs.size());
    for (size_t hop = 0; hop < work.head_pairs.size(); ++hop) {
      most.head_pairs[hop] = std::max(most.head_pairs[hop], work.head_pairs[hop]);
      most.calls[hop] = std::max(most.calls[hop], work.calls[hop]);
      most.rows[hop] = std::max(most.rows[hop], work.rows[hop]);
    }
  }
  return most;
}

}  // namespace longspan
