// Bytes of head exchanges and travelling keys. Methods add up their volumes from these functions,
// which count arrivals by the method's geometry. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Head rows (one head of one token) that reach a rank from others, by the method's geometry,
/// summed over the ranks.
struct HeadRows {
  int64_t query = 0;            // in a head exchange; as many outputs return
  int64_t kv = 0;               // keys in a head exchange; as many values
  int64_t context_kv = 0;       // keys of the rank's own heads; as many values
  int64_t latents = 0;          // tokens whose latents arrive in a head exchange
  int64_t context_latents = 0;  // tokens whose latents arrive without one
  /// If heads arrive in slices: rows that neighbours pass on from the slices of the others,
  /// including their own tokens.
  int64_t gathered_query = 0, gathered_kv = 0;
};
HeadRows rows_that_arrive(const ParallelPlan& plan, const AttentionShape& shape,
                          const Packing& padded);

/// Returns the volume of `query`, `kv` and `latents`. Forward: q, k, v and the outputs; backward:
/// their gradients. `in_waves`: the backward exchanges queries, keys and values once more.
AttentionVolume exchange_volume(const HeadRows& rows, const AttentionShape& shape, bool in_waves,
                                bool checkpointing, bool output_is_known);

/// Returns the volume of a layer that works on whole rows of some heads per rank
/// (sequence_parallel/whole_sequence.h). bytes_in, bytes_out: bytes of one head of one token, of
/// the inputs and of the outputs. Backward: for inputs that require a gradient.
AttentionVolume whole_sequence_volume(int64_t num_ranks, int64_t num_tokens, int64_t num_heads,
                                      int64_t bytes_in, int64_t bytes_out);

/// Method::volume for exchanged heads, keys that travel a ring, or both.
AttentionVolumeParts volume_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                       const Packing& padded, bool checkpointing,
                                       bool output_is_known);
/// The same with explicit `in_waves`: true for exchanges in waves, also if they save the received
/// tensors.
AttentionVolumeParts volume_of_degrees_in(bool in_waves, const ParallelPlan& plan,
                                          const AttentionShape& shape, const Packing& padded,
                                          bool checkpointing, bool output_is_known);

}  // namespace longspan
