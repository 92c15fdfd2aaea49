// Bytes of head exchanges and of keys that travel around rings. Methods add up their volumes from
// these functions, which count received data by the method's geometry. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Head rows (one head of one token) that a rank receives from other ranks, by the method's
/// geometry, summed over the ranks.
struct HeadRows {
  int64_t query = 0;            // queries in a head exchange; the same number of outputs returns
  int64_t kv = 0;               // keys in a head exchange; the same number of values arrives
  int64_t context_kv = 0;       // keys of the rank's own heads; the same number of values arrives
  int64_t latents = 0;          // tokens whose latents arrive in a head exchange
  int64_t context_latents = 0;  // tokens whose latents arrive outside a head exchange
  /// If heads arrive in slices of head_dim: rows of the all-gather in which neighbours exchange
  /// their slices, including the neighbours' own tokens.
  int64_t gathered_query = 0, gathered_kv = 0;
};
HeadRows rows_that_arrive(const ParallelPlan& plan, const AttentionShape& shape,
                          const Packing& padded);

/// Returns the volume of rows.query, rows.kv and rows.latents. Forward: queries, keys, values and
/// outputs. Backward: the gradients of these tensors. `in_waves`: the backward exchanges queries,
/// keys and values once more.
AttentionVolume exchange_volume(const HeadRows& rows, const AttentionShape& shape, bool in_waves,
                                bool checkpointing, bool output_is_known);

/// Returns the volume of a layer that works on whole rows of some heads per rank
/// (sequence_parallel/whole_sequence.h). bytes_in, bytes_out: bytes of one head of one token, of
/// the inputs and of the outputs. The backward is counted for inputs that require a gradient.
AttentionVolume whole_sequence_volume(int64_t num_ranks, int64_t num_tokens, int64_t num_heads,
                                      int64_t bytes_in, int64_t bytes_out);

/// Method::volume for exchanged heads, keys that travel around a ring, or both.
AttentionVolumeParts volume_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                       const Packing& padded, bool checkpointing,
                                       bool output_is_known);
/// The same as volume_of_degrees() with explicit `in_waves`: true for exchanges in waves, even if
/// the exchanges save the received tensors.
AttentionVolumeParts volume_of_degrees_in(bool in_waves, const ParallelPlan& plan,
                                          const AttentionShape& shape, const Packing& padded,
                                          bool checkpointing, bool output_is_known);

}  // namespace longspan
