// Attention of the Ulysses kinds: tokens are exchanged for heads, pieces attend, and heads are
// exchanged for tokens. t: this rank's tokens, N: query heads, M: kv heads, S: tokens of a piece or
// kv item, n, m: its heads, H: elements of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/plan/head_split.h"
#include "longspan/sequence_parallel/head_exchange.h"

namespace longspan {

/// Computes out_SnH from q_SnH of a piece, k_SmH and v_SmH of its kv heads over the item's tokens,
/// and sinks_n of its query heads if the layer has sinks. Differentiable. Takes part in SaveScope
/// and ReplayScope with one result per call. Owns its data, so it may be called after the attend()
/// that made it has returned.
using AttendPiece = std::function<at::Tensor(const AttentionPiece& piece, const HeadBlock& kv_item,
                                             const at::Tensor& q_SnH, const at::Tensor& k_SmH,
                                             const at::Tensor& v_SmH, const at::Tensor& sinks_n)>;

/// Returns the plain kernel for any tokens of a row. The kernel must outlive it.
AttendPiece piece_attention(const BlockKernel& kernel, const AttentionSpec& spec,
                            const Packing& packing);

/// Tensors that this rank attends with, after the exchange.
struct ExchangedHeads {
  std::vector<at::Tensor> queries;  // one per piece
  std::vector<at::Tensor> k_items, v_items;
};
/// Returns one output per piece of a wave. sinks_N: of all query heads; undefined: none.
std::vector<at::Tensor> attend_pieces(const RankShare& share, const HeadWave& wave,
                                      const ExchangedHeads& heads, const at::Tensor& sinks_N,
                                      const AttendPiece& attend);

/// The queries of one wave, the kv items that it fetches, and those that it releases, by rank.
BlocksByRank query_blocks(const HeadSplit& split, int wave);
BlocksByRank fetched_blocks(const HeadSplit& split, int wave);
BlocksByRank released_blocks(const HeadSplit& split, int wave);

/// Computes out_tNH from q_tNH, k_tMH, v_tMH. Differentiable. With one wave, all heads are
/// exchanged at once and saved for the backward; for more waves see head_waves.h.
at::Tensor attend_exchanged(const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                            const at::Tensor& v_tMH, const HeadSplit& split, const Group& group,
                            const AttendPiece& attend, const at::Tensor& sinks_N = {});

}  // namespace longspan
