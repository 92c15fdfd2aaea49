// T: tokens of the padded row, P: ranks, U: Ulysses degree, R: ring degree, N: query heads, M: kv
// heads.
#include "longspan/plan/exchange_volume.h"

#include <algorithm>

namespace longspan {
namespace {

/// Tokens of the block that `rank` does not hold already.
int64_t foreign_rows(const HeadBlock& block, int64_t rank, int64_t tokens_per_rank) {
  const int64_t begin = std::max(block.token_begin, rank * tokens_per_rank);
  const int64_t end = std::min(block.token_begin + block.num_tokens, (rank + 1) * tokens_per_rank);
  return block.num_heads * (block.num_tokens - std::max<int64_t>(0, end - begin));
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
  const int64_t numbers =
      (ring_size - 1) * num_tokens * kv_heads * (shape.spec.key_dim + shape.spec.value_dim);
  return {numbers * shape.element_bytes, numbers * (shape.element_bytes + shape.gradient_bytes)};
}

}  // namespace

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

HeadRows rows_of_whole_heads(int64_t num_ranks, int64_t num_tokens, int64_t query_heads,
                             int64_t kv_heads) {
  const int64_t foreign = num_tokens - num_tokens / num_ranks;
  return {query_heads * foreign, kv_heads * foreign};
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

AttentionVolume exchange_volume(const HeadRows& rows, const AttentionShape& shape, bool in_waves,
                                bool checkpointing, bool output_is_known) {
  AttentionVolume volume;
  const int64_t inputs = (rows.query + rows.kv) * shape.key_bytes() + rows.kv * shape.value_bytes(),
                outputs = rows.query * shape.value_bytes();
  volume.forward = inputs + outputs;
  volume.backward = volume.forward;
  if (in_waves || checkpointing) volume.backward += inputs;
  if (checkpointing && !output_is_known) volume.backward += outputs;
  return volume;
}

AttentionVolume whole_sequence_volume(int64_t num_ranks, int64_t num_tokens, int64_t num_heads,
                                      int64_t bytes_in, int64_t bytes_out) {
  const int64_t rows = num_heads * (num_tokens - num_tokens / num_ranks);
  return {rows * (bytes_in + bytes_out), rows * (bytes_in + bytes_out)};
}

AttentionVolumeParts volume_of_degrees_in(bool in_waves, const ParallelPlan& plan,
                                          const AttentionShape& shape, const Packing& padded,
                                          bool checkpointing, bool output_is_known) {
  // Ulysses of degree U on the T / R tokens of each of R ring ranks, then U rings of the kv heads
  // that each Ulysses rank has.
  const int64_t T = padded.num_tokens(), N = shape.spec.num_heads, M = shape.spec.num_kv_heads;
  const int64_t U = plan.ulysses_size, R = plan.ring_size;
  HeadRows rows = rows_of_whole_heads(U, T / R, N, kv_heads_in_all(U, N, M, N));
  rows.query *= R;
  rows.kv *= R;
  return {exchange_volume(rows, shape, in_waves, checkpointing && U > 1, output_is_known),
          context_volume(R, kv_heads_of_waves(plan, N, M), T, shape)};
}

AttentionVolumeParts volume_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                       const Packing& padded, bool checkpointing,
                                       bool output_is_known) {
  return volume_of_degrees_in(plan.head_waves > 1, plan, shape, padded, checkpointing,
                              output_is_known);
}

}  // namespace longspan
