// What sharing a row adds to the memory of an attention, by formula: methods add theirs up from the
// parts here, which count by the method's geometry. No torch.
// t: tokens of a rank.
#pragma once

#include <algorithm>
#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/geometry.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Bytes of one layer on one rank, beside queries, keys, values and outputs of the rank's own
/// tokens, and, in the backward, beside the gradients of these: what attention without other ranks
/// has, too. May be less than zero, where a rank has little to do.
struct AttentionMemory {
  double forward = 0;   ///< at the fullest moment of the forward
  double backward = 0;  ///< and of the backward, of queries, keys and values that were made again
  double replay = 0;    ///< as backward, while these are made and brought to where they are used
  double inputs = 0;    ///< of queries, keys and values, where they are saved for the backward
  double leaves = 0;    ///< of what the kernel gives, which is saved
  double output = 0;    ///< of the output in the order of tokens, where that is another tensor
};

/// Of the rank that needs most; zeros for one rank to a row. `padded` is the row as
/// TokenOrder::packing has it; shape.gradient_bytes are those of the gradients that kernels give.
AttentionMemory attention_memory(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded);

/// Bytes of head rows (one head of one token): of a query, of a key and its value, of an output,
/// and of their gradients as the kernel gives them; and of what all keys of a token are made of.
struct RowBytes {
  explicit RowBytes(const AttentionShape& shape)
      : query(static_cast<double>(shape.key_bytes())),
        kv(static_cast<double>(shape.key_bytes() + shape.value_bytes())),
        output(static_cast<double>(shape.value_bytes())),
        latents(static_cast<double>(shape.spec.latent_dim.value_or(0) * shape.element_bytes)),
        widening(static_cast<double>(shape.gradient_bytes) /
                 static_cast<double>(shape.element_bytes)) {}

  double query, kv, output, latents;
  double widening;  // a gradient's bytes for each byte
};

/// The larger of each number.
AttentionMemory fullest(const AttentionMemory& a, const AttentionMemory& b);
/// The fullest of what `of_rank(rank)` says of each rank.
template <typename OfRank>
AttentionMemory fullest_rank(const ParallelPlan& plan, const OfRank& of_rank) {
  AttentionMemory most = of_rank(0);
  for (int rank = 1; rank < plan.sequence_size; ++rank) most = fullest(most, of_rank(rank));
  return most;
}

/// Head rows that one rank attends with, in all and of its largest wave.
struct HeadsAtHand {
  double queries = 0, kv = 0;
  double wave_queries = 0, wave_kv = 0;
  /// Tokens of which it has what keys and values are made of, in the place of these.
  double latents = 0;
  /// Rows of keys whose gradients other ranks return.
  double returning_kv = 0;
  /// Whether ranks have some heads only: others' are cut out of the own tokens' to be sent.
  bool cuts = true;
};
/// By queries, keys and latents of the steps of the rank's geometry.
HeadsAtHand heads_at_hand(const RankGeometry& geometry, int rank, int64_t tokens_per_rank);

/// Of a rank that exchanges its `tokens` tokens for heads. `num_ranks`: with so many.
AttentionMemory memory_of_exchange(const HeadsAtHand& heads, int head_waves, int num_ranks,
                                   const AttentionShape& shape, int64_t tokens);

// Method::memory
/// Each rank has its own tokens' numbers and nothing else.
AttentionMemory nothing_beside(const ParallelPlan& plan, const AttentionShape& shape,
                               const Packing& padded);
/// Of exchanged heads and of keys that travel rings, or of one of the two.
AttentionMemory memory_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                  const Packing& padded);

}  // namespace longspan
