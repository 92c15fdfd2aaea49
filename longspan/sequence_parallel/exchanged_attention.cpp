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
                                  const AttentionInputs& heads, AttentionCheckpoint checkpoint) {
    return leaf_attention(kernel, heads, spec,
                          blocks_of_piece(piece.query, kv_item, packing, spec.window), checkpoint);
  };
}

std::vector<at::Tensor> attend_pieces(const RankShare& share, const HeadWave& wave,
                                      const ExchangedHeads& heads, const AttendPiece& attend,
                                      AttentionCheckpoint checkpoint) {
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < wave.pieces.size(); ++i) {
    const AttentionPiece& piece = wave.pieces[i];
    const AttentionInputs of_piece{
        heads.queries[i], some_heads(heads.k_items[piece.kv_item], piece.kv_begin, piece.num_kv),
        some_heads(heads.v_items[piece.kv_item], piece.kv_begin, piece.num_kv),
        sinks_of(heads.sinks_N, piece.query)};
    outs.push_back(attend(piece, share.kv_items[piece.kv_item], of_piece, checkpoint));
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

at::Tensor attend_exchanged(const AttentionInputs& inputs, const HeadSplit& split,
                            const Group& group, const AttendPiece& attend,
                            AttentionCheckpoint checkpoint) {
  const RankShare& share = split[group.rank()];
  if (share.waves.size() > 1) {
    return attend_in_waves(inputs, split, group, attend, checkpoint);
  }
  const BlocksByRank queries = query_blocks(split, 0), kv = fetched_blocks(split, 0);
  const auto q = start_tokens_to_heads(inputs.q_TNH, queries, group);
  const auto k = start_tokens_to_heads(inputs.k_SMH, kv, group);
  const auto v = start_tokens_to_heads(inputs.v_SMH, kv, group);
  std::vector<at::Tensor> outs;
  {
    ExchangedHeads heads;
    heads.queries = finish_tokens_to_heads(q);
    heads.k_items = finish_tokens_to_heads(k);
    heads.v_items = finish_tokens_to_heads(v);
    heads.sinks_N = inputs.sinks_N;
    outs = attend_pieces(share, share.waves[0], heads, attend, checkpoint);
  }  // frees the exchanged tensors, which only an autograd graph still needs
  return finish_heads_to_tokens(start_heads_to_tokens(outs, queries, group, inputs.q_TNH.size(0),
                                                      checkpoint.output_is_known()));
}

}  // namespace longspan
