// Memory that sequence parallelism adds to an attention layer, by formula. Methods combine the
// functions of this file, which count blocks and keys by the method's geometry. No torch. t: tokens
// of a rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/geometry.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Bytes of one layer on one rank, in addition to the memory of the rank's own tokens (queries,
/// keys, values and outputs; in the backward also the gradients). A number may be negative if a
/// rank has little work.
struct AttentionMemory {
  double forward = 0;   ///< at the peak of the forward
  double backward = 0;  ///< at the peak of the backward, on recomputed queries, keys and values
  double replay = 0;  ///< like backward, during recomputation and exchange of queries, keys, values
  double inputs = 0;  ///< queries, keys and values, if saved for the backward
  double leaves = 0;  ///< saved outputs of the kernel
  double output = 0;  ///< the output in token order, if in a separate tensor
  double outside_rule = 0;  ///< the part of `backward` that a recurrence's rule does not meet
};

/// Returns the largest bytes of any rank; zeros for one rank per row. `padded`: the padded row
/// (TokenOrder::packing). shape.gradient_bytes must be the element size of the kernels' gradients.
AttentionMemory attention_memory(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded);

/// Bytes of a head row (one head of one token): of a query, of a key with its value, and of an
/// output. `latents`: bytes of one token's latents, which stand for the keys and values of all
/// heads.
struct RowBytes {
  explicit RowBytes(const AttentionShape& shape)
      : query(static_cast<double>(shape.key_bytes())),
        kv(static_cast<double>(shape.key_bytes() + shape.value_bytes())),
        output(static_cast<double>(shape.value_bytes())),
        latents(static_cast<double>(shape.spec.latent_dim.value_or(0) * shape.element_bytes)),
        widening(static_cast<double>(shape.gradient_bytes) /
                 static_cast<double>(shape.element_bytes)) {}

  double query, kv, output, latents;
  double widening;  // bytes of a gradient per byte of its tensor
};

/// Returns the elementwise maximum.
AttentionMemory fullest(const AttentionMemory& a, const AttentionMemory& b);
/// Returns the elementwise maximum of `of_rank(rank)` over all ranks.
template <typename OfRank>
AttentionMemory fullest_rank(const ParallelPlan& plan, const OfRank& of_rank) {
  AttentionMemory most = of_rank(0);
  for (int rank = 1; rank < plan.sequence_size; ++rank) most = fullest(most, of_rank(rank));
  return most;
}

/// Head rows that take part in one rank's attention, in total and in the rank's largest wave.
struct HeadsAtHand {
  double queries = 0, kv = 0;
  double wave_queries = 0, wave_kv = 0;
  /// Tokens whose latents the rank receives instead of keys and values.
  double latents = 0;
  /// Head rows of keys from other ranks; an estimate of the head rows whose gradients other ranks
  /// return.
  double returning_kv = 0;
  /// True if each rank attends with only some heads. Before the send, a rank then copies the heads
  /// for other ranks out of its own tokens.
  bool cuts = true;
};
/// Counts the queries, keys and latents in the steps of the rank's geometry.
HeadsAtHand heads_at_hand(const RankGeometry& geometry, int rank, int64_t tokens_per_rank);

/// Returns the memory of a rank that exchanges its `tokens` tokens for heads with `num_ranks` ranks
/// (including itself).
AttentionMemory memory_of_exchange(const HeadsAtHand& heads, int head_waves, int num_ranks,
                                   const AttentionShape& shape, int64_t tokens);

// Method::memory
/// Zeros: each rank holds only its own tokens.
AttentionMemory nothing_beside(const ParallelPlan& plan, const AttentionShape& shape,
                               const Packing& padded);
/// For exchanged heads, keys that travel around rings, or both.
AttentionMemory memory_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                  const Packing& padded);

}  // namespace longspan
