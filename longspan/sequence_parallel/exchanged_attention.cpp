#include "longspan/sequence_parallel/exchanged_attention.h"

#include <ATen/ATen.h>

#include "longspan/attention/leaf_attention.h"
#include "longspan/plan/geometry.h"
#include "longspan/sequence_parallel/head_waves.h"

namespace longspan {
namespace {

BlocksByRank items_by_rank(const HeadSplit& split, int wave, std::vector<int> HeadWave::* which) {
  BlocksByRank by_rank;
  for (const RankShare& share : split) {
    auto& blocks = by_rank.emplace_back();
    for (int item : share.waves[wave].*which) blocks.push_back(share.kv_items[item]);
  }
  return by_rank;
}

at::Tensor some_heads(const at::Tensor& x, int64_t begin, int64_t count) {
  return count == x.size(1) ? x : x.narrow(1, begin, count);
}

at::Tensor sinks_of(const at::Tensor& sinks_N, const HeadBlock& query) {
  return sinks_N.defined() ? sinks_N.narrow(0, query.head_begin, query.num_heads) : sinks_N;
}

}  // namespace

AttendPiece piece_attention(const BlockKernel& kernel, const AttentionSpec& spec,
                            const Packing& packing) {
  return [&kernel, spec, packing](const AttentionPiece& piece, const HeadBlock& kv_item,
                                  const at::Tensor& q_SnH, const at::Tensor& k_SmH,
                                  const at::Tensor& v_SmH, const at::Tensor& sinks_n) {
    return leaf_attention(kernel, q_SnH, k_SmH, v_SmH, spec,
                          blocks_of_piece(piece.query, kv_item, packing, spec.window), sinks_n);
  };
}

std::vector<at::Tensor> attend_pieces(const RankShare& share, const HeadWave& wave,
                                      const ExchangedHeads& heads, const at::Tensor& sinks_N,
                                      const AttendPiece& attend) {
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < wave.pieces.size(); ++i) {
    const AttentionPiece& piece = wave.pieces[i];
    outs.push_back(attend(piece, share.kv_items[piece.kv_item], heads.queries[i],
                          some_heads(heads.k_items[piece.kv_item], piece.kv_begin, piece.num_kv),
                          some_heads(heads.v_items[piece.kv_item], piece.kv_begin, piece.num_kv),
                          sinks_of(sinks_N, piece.query)));
  }
  return outs;
}

BlocksByRank query_blocks(const HeadSplit& split, int wave) {
  BlocksByRank by_rank;
  for (const RankShare& share : split) {
    auto& blocks = by_rank.emplace_back();
    for (const AttentionPiece& piece : share.waves[wave].pieces) blocks.push_back(piece.query);
  }
  return by_rank;
}

BlocksByRank fetched_blocks(const HeadSplit& split, int wave) {
  return items_by_rank(split, wave, &HeadWave::fetched);
}

BlocksByRank released_blocks(const HeadSplit& split, int wave) {
  return items_by_rank(split, wave, &HeadWave::released);
}

at::Tensor attend_exchanged(const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                            const at::Tensor& v_tMH, const HeadSplit& split, const Group& group,
                            const AttendPiece& attend, const at::Tensor& sinks_N) {
  const RankShare& share = split[group.rank()];
  if (share.waves.size() > 1) {
    return attend_in_waves(q_tNH, k_tMH, v_tMH, split, group, attend, sinks_N);
  }
  const BlocksByRank queries = query_blocks(split, 0), kv = fetched_blocks(split, 0);
  const auto q = start_tokens_to_heads(q_tNH, queries, group);
  const auto k = start_tokens_to_heads(k_tMH, kv, group);
  const auto v = start_tokens_to_heads(v_tMH, kv, group);
  std::vector<at::Tensor> outs;
  {
    ExchangedHeads heads;
    heads.queries = finish_tokens_to_heads(q);
    heads.k_items = finish_tokens_to_heads(k);
    heads.v_items = finish_tokens_to_heads(v);
    outs = attend_pieces(share, share.waves[0], heads, sinks_N, attend);
  }  // frees them; without a graph nothing needs them any more
  return finish_heads_to_tokens(start_heads_to_tokens(outs, queries, group, q_tNH.size(0)));
}

}  // namespace longspan
