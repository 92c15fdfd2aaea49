// T: tokens of the padded row, P: ranks, t = T / P, U: Ulysses degree, R: ring degree, N: query
// heads, M: kv heads, s: slices of a head (XTuner). A head row: one token of one head, head_dim
// numbers.
#include "longspan/plan/attention_volume.h"

#include <algorithm>

#include "longspan/plan/head_split.h"

namespace longspan {
namespace {

/// Head rows that reach a rank from another one.
struct HeadRows {
  int64_t query = 0;  // outputs take the same way back
  int64_t kv = 0;     // keys; as many values
};

/// kv heads that the query heads of each of `num_parts` equal runs use, summed over the runs. Query
/// heads beyond the last one use the last kv head.
int64_t kv_heads_in_all(int64_t num_parts, int64_t num_heads, int64_t num_kv_heads,
                        int64_t padded_heads) {
  const int64_t group = num_heads / num_kv_heads, n = padded_heads / num_parts;
  int64_t count = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t first = std::min(part * n / group, num_kv_heads - 1);
    const int64_t last = std::min(((part + 1) * n - 1) / group, num_kv_heads - 1);
    count += last - first + 1;
  }
  return count;
}

/// A rank has t of the T tokens of its heads already.
HeadRows whole_heads(int64_t num_ranks, int64_t num_tokens, int64_t query_heads, int64_t kv_heads) {
  const int64_t foreign = num_tokens - num_tokens / num_ranks;
  return {query_heads * foreign, kv_heads * foreign};
}

/// Tokens of the block that `rank` does not hold already.
int64_t foreign_rows(const HeadBlock& block, int64_t rank, int64_t tokens_per_rank) {
  const int64_t begin = std::max(block.token_begin, rank * tokens_per_rank);
  const int64_t end = std::min(block.token_begin + block.num_tokens, (rank + 1) * tokens_per_rank);
  return block.num_heads * (block.num_tokens - std::max<int64_t>(0, end - begin));
}

HeadRows rows_of_split(const HeadSplit& split, int64_t num_tokens) {
  const int64_t tokens_per_rank = num_tokens / static_cast<int64_t>(split.size());
  HeadRows rows;
  for (size_t rank = 0; rank < split.size(); ++rank) {
    const auto at = static_cast<int64_t>(rank);
    for (const HeadWave& wave : split[rank].waves) {
      for (const AttentionPiece& piece : wave.pieces) {
        rows.query += foreign_rows(piece.query, at, tokens_per_rank);
      }
    }
    for (const HeadBlock& item : split[rank].kv_items) {
      rows.kv += foreign_rows(item, at, tokens_per_rank);
    }
  }
  return rows;
}

/// forward: q, k, v and the outputs; backward: their gradients.
AttentionVolume exchange_volume(const HeadRows& rows, int64_t row_bytes, bool in_waves,
                                bool checkpointing, bool output_is_known) {
  AttentionVolume volume;
  const int64_t inputs = rows.query + 2 * rows.kv, outputs = rows.query;
  volume.forward = (inputs + outputs) * row_bytes;
  volume.backward = volume.forward;
  if (in_waves || checkpointing) volume.backward += inputs * row_bytes;
  if (checkpointing && !output_is_known) volume.backward += outputs * row_bytes;
  return volume;
}

/// kv heads of the pieces that a Ulysses rank attends with, summed over the ranks: a kv head that
/// two waves use goes round the ring in each.
int64_t kv_heads_of_waves(const ParallelPlan& plan, int64_t num_heads, int64_t num_kv_heads) {
  int64_t count = 0;
  for (const RankShare& share : split_evenly(plan.ulysses_size, num_heads, num_kv_heads,
                                             /*num_tokens=*/1, plan.head_waves)) {
    for (const HeadWave& wave : share.waves) {
      for (const AttentionPiece& piece : wave.pieces) count += piece.num_kv;
    }
  }
  return count;
}

/// Every kv head of every rank reaches all ranks of its ring but its own, in the backward again,
/// and its gradient makes as long a way.
AttentionVolume context_volume(int64_t ring_size, int64_t kv_heads, int64_t num_tokens,
                               const AttentionShape& shape) {
  const int64_t numbers = (ring_size - 1) * num_tokens * 2 * kv_heads * shape.head_dim;
  return {numbers * shape.element_bytes, numbers * (shape.element_bytes + shape.gradient_bytes)};
}

/// Slices of heads travel as heads do; then s ranks gather the heads that they hold the slices of.
AttentionVolume xtuner_volume(const ParallelPlan& plan, const AttentionShape& shape,
                              int64_t num_tokens, bool checkpointing, bool output_is_known) {
  const int64_t s = plan.num_head_slices, num_holders = plan.sequence_size / s;
  const int64_t kv_heads =
      kv_heads_in_all(num_holders, shape.num_heads, shape.num_kv_heads, shape.num_heads);
  const int64_t row_bytes = shape.head_dim * shape.element_bytes;
  AttentionVolume volume =
      exchange_volume(whole_heads(plan.sequence_size, num_tokens, shape.num_heads, kv_heads),
                      row_bytes, false, checkpointing, output_is_known);
  const int64_t gathered = (s - 1) * num_tokens * (shape.num_heads + 2 * kv_heads) * row_bytes;
  volume.forward += gathered;
  volume.backward += gathered;  // reduce-scattered
  if (checkpointing) volume.backward += gathered;
  return volume;
}

}  // namespace

AttentionVolumeParts attention_volume_parts(const ParallelPlan& plan, const AttentionShape& shape,
                                            const Packing& padded, bool checkpointing,
                                            bool output_is_known) {
  using Mode = SequenceParallelMode;
  const int64_t T = padded.num_tokens(), N = shape.num_heads, M = shape.num_kv_heads;
  const int64_t P = plan.sequence_size, U = plan.ulysses_size, R = plan.ring_size;
  const int64_t row_bytes = shape.head_dim * shape.element_bytes;
  // Async Ulysses keeps what its waves have exchanged.
  const bool in_waves = plan.head_waves > 1 && plan.mode != Mode::kAsyncUlysses;
  AttentionVolumeParts parts;
  if (P == 1) return parts;
  switch (plan.mode) {
    case Mode::kLocal:
      break;
    case Mode::kXtunerUlysses:
      parts.heads = xtuner_volume(plan, shape, T, checkpointing, output_is_known);
      break;
    case Mode::kBalancedUlysses:
      parts.heads = exchange_volume(
          rows_of_split(split_by_cost(plan.sequence_size, N, M, padded, plan.head_waves), T),
          row_bytes, in_waves, checkpointing, output_is_known);
      break;
    case Mode::kDummyHeadUlysses: {
      const int64_t padded_heads = (N + P - 1) / P * P;
      parts.heads =
          exchange_volume(whole_heads(P, T, padded_heads, kv_heads_in_all(P, N, M, padded_heads)),
                          row_bytes, in_waves, checkpointing, output_is_known);
      break;
    }
    default: {
      // Ulysses of degree U on the T / R tokens of each of R ring ranks, then U rings of the kv
      // heads that each Ulysses rank has.
      const int64_t kv_heads = kv_heads_in_all(U, N, M, N);
      HeadRows rows = whole_heads(U, T / R, N, kv_heads);
      rows.query *= R;
      rows.kv *= R;
      parts.heads =
          exchange_volume(rows, row_bytes, in_waves, checkpointing && U > 1, output_is_known);
      parts.context = context_volume(R, kv_heads_of_waves(plan, N, M), T, shape);
    }
  }
  return parts;
}

AttentionVolume attention_volume(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing, bool output_is_known) {
  const auto [heads, context] =
      attention_volume_parts(plan, shape, padded, checkpointing, output_is_known);
  return {heads.forward + context.forward, heads.backward + context.backward};
}

}  // namespace longspan
