// Attention of the Ulysses methods in three steps: an all-to-all exchanges tokens for heads, the
// kernel computes each piece (plan/head_split.h), and an all-to-all exchanges heads for tokens. t:
// this rank's tokens, N: query heads, M: kv heads, S: tokens of a piece or kv item, n, m: heads of
// a piece or kv item, H: elements of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/plan/head_split.h"
#include "longspan/sequence_parallel/head_exchange.h"

namespace longspan {

/// Computes out_SnH from a piece's queries, from the keys and values of the piece's kv heads over
/// the item's tokens, and from the sinks of the piece's query heads if the layer has sinks.
/// Differentiable. Saves or replays one result per call. The function owns its data, so it may be
/// called after the return of the attend() that made it.
using AttendPiece =
    std::function<at::Tensor(const AttentionPiece& piece, const HeadBlock& kv_item,
                             const AttentionInputs& heads, AttentionCheckpoint checkpoint)>;

/// Returns the plain kernel for any tokens of a row. `kernel` must outlive the returned function.
AttendPiece piece_attention(const BlockKernel& kernel, const AttentionSpec& spec,
                            const Packing& packing);

/// Inputs of this rank's attention, after the exchange.
struct ExchangedHeads {
  std::vector<at::Tensor> queries;  // one per piece
  std::vector<at::Tensor> k_items, v_items;
  at::Tensor sinks_N;  // sinks of all query heads; undefined: none
};
/// Returns one output per piece of a wave.
std::vector<at::Tensor> attend_pieces(const RankShare& share, const HeadWave& wave,
                                      const ExchangedHeads& heads, const AttendPiece& attend,
                                      AttentionCheckpoint checkpoint);

/// Return blocks by rank: the queries of one wave, the kv items that the wave fetches, and the kv
/// items that the wave releases.
BlocksByRank query_blocks(const HeadSplit& split, int wave);
BlocksByRank fetched_blocks(const HeadSplit& split, int wave);
BlocksByRank released_blocks(const HeadSplit& split, int wave);

/// Computes out_tNH from the heads of this rank's tokens. Differentiable. With one wave, all heads
/// are exchanged at once and saved for the backward; for more waves see head_waves.h.
at::Tensor attend_exchanged(const AttentionInputs& inputs, const HeadSplit& split,
                            const Group& group, const AttendPiece& attend,
                            AttentionCheckpoint checkpoint);

}  // namespace longspan
