// What the Ulysses kinds share: tokens become heads, pieces attend, and heads become tokens.
// t: this rank's tokens, N: query heads, M: kv heads, S: tokens of a piece or kv item, n, m: its
// heads, H: numbers in a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/plan/head_split.h"
#include "longspan/sequence_parallel/head_exchange.h"

namespace longspan {

/// q_SnH of a piece, k_SmH and v_SmH of the kv heads that it uses, of the item's tokens, and
/// sinks_n of its query heads where the layer has them -> out_SnH. Differentiable; takes part in
/// SaveScope and ReplayScope with one result a call. May be called after the attend() that made it
/// has returned: it holds what it needs.
using AttendPiece = std::function<at::Tensor(const AttentionPiece& piece, const HeadBlock& kv_item,
                                             const at::Tensor& q_SnH, const at::Tensor& k_SmH,
                                             const at::Tensor& v_SmH, const at::Tensor& sinks_n)>;

/// The plain kernel on any tokens of a row. The kernel must outlive it.
AttendPiece piece_attention(const BlockKernel& kernel, const AttentionSpec& spec,
                            const Packing& packing);

/// What this rank attends with, once it is here.
struct ExchangedHeads {
  std::vector<at::Tensor> queries;  // one a piece
  std::vector<at::Tensor> k_items, v_items;
};
/// One output a piece of a wave. sinks_N: of all query heads; undefined: none.
std::vector<at::Tensor> attend_pieces(const RankShare& share, const HeadWave& wave,
                                      const ExchangedHeads& heads, const at::Tensor& sinks_N,
                                      const AttendPiece& attend);

/// The queries of one wave, and the kv items that it fetches, by rank.
BlocksByRank query_blocks(const HeadSplit& split, int wave);
BlocksByRank fetched_blocks(const HeadSplit& split, int wave);
BlocksByRank released_blocks(const HeadSplit& split, int wave);

/// q_tNH, k_tMH, v_tMH -> out_tNH. Differentiable. One wave: all heads travel at once and are saved
/// for the backward; more waves: head_waves.h.
at::Tensor attend_exchanged(const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                            const at::Tensor& v_tMH, const HeadSplit& split, const Group& group,
                            const AttendPiece& attend, const at::Tensor& sinks_N = {});

}  // namespace longspan
