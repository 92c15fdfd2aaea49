// Bytes of head exchanges and of travelling keys: methods add their volumes up from these, which
// count what reaches ranks by the method's geometry. No torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Head rows (one head of one token) that reach a rank from others, by the method's geometry,
/// summed over the ranks.
struct HeadRows {
  int64_t query = 0;            // in exchange for other heads; outputs take the same way back
  int64_t kv = 0;               // keys, in exchange for other heads; as many values
  int64_t context_kv = 0;       // keys of the rank's own heads; as many values
  int64_t latents = 0;          // tokens of which keys and values are made here, in exchange too
  int64_t context_latents = 0;  // and of those for which nothing is exchanged
  /// Where heads arrive in slices: what neighbours hand over of the others, their own tokens too.
  int64_t gathered_query = 0, gathered_kv = 0;
};
HeadRows rows_that_arrive(const ParallelPlan& plan, const AttentionShape& shape,
                          const Packing& padded);

/// Of `query`, `kv` and `latents`. forward: q, k, v and the outputs; backward: their gradients.
/// `in_waves`: the backward exchanges queries, keys and values once more.
AttentionVolume exchange_volume(const HeadRows& rows, const AttentionShape& shape, bool in_waves,
                                bool checkpointing, bool output_is_known);

/// Of a layer that works on whole rows of some heads a rank (sequence_parallel/whole_sequence.h),
/// with so many bytes in a token of a head that goes in and that comes out. backward: of an input
/// that has a gradient.
AttentionVolume whole_sequence_volume(int64_t num_ranks, int64_t num_tokens, int64_t num_heads,
                                      int64_t bytes_in, int64_t bytes_out);

/// Method::volume of exchanged heads and of keys that travel a ring, or one of the two.
AttentionVolumeParts volume_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                       const Packing& padded, bool checkpointing,
                                       bool output_is_known);
/// The same, of exchanges that are `in_waves`, or that save what their waves have exchanged.
AttentionVolumeParts volume_of_degrees_in(bool in_waves, const ParallelPlan& plan,
                                          const AttentionShape& shape, const Packing& padded,
                                          bool checkpointing, bool output_is_known);

}  // namespace longspan
