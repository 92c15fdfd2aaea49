// Bytes of head exchanges and of travelling keys: methods add their volumes up from these. No
// torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/head_split.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Head rows (one head of one token) that reach a rank from another one.
struct HeadRows {
  int64_t query = 0;  // outputs take the same way back
  int64_t kv = 0;     // keys; as many values
};

/// kv heads that the query heads of each of `num_parts` equal runs use, summed over the runs. Query
/// heads beyond the last one use the last kv head.
int64_t kv_heads_in_all(int64_t num_parts, int64_t num_heads, int64_t num_kv_heads,
                        int64_t padded_heads);

/// For ranks that together get all tokens of so many heads. Each rank has its own share of the
/// tokens already.
HeadRows rows_of_whole_heads(int64_t num_ranks, int64_t num_tokens, int64_t query_heads,
                             int64_t kv_heads);
HeadRows rows_of_split(const HeadSplit& split, int64_t num_tokens);

/// forward: q, k, v and the outputs; backward: their gradients. `in_waves`: the backward exchanges
/// queries, keys and values once more.
AttentionVolume exchange_volume(const HeadRows& rows, const AttentionShape& shape, bool in_waves,
                                bool checkpointing, bool output_is_known);

/// Of a layer that works on whole rows of some heads a rank (sequence_parallel/whole_sequence.h),
/// with so many bytes in a token of a head that goes in and that comes out. backward: of an input
/// that has a gradient.
AttentionVolume whole_sequence_volume(int64_t num_ranks, int64_t num_tokens, int64_t num_heads,
                                      int64_t bytes_in, int64_t bytes_out);

/// Method::volume of Ulysses around a ring, of any degrees.
AttentionVolumeParts volume_of_degrees(const ParallelPlan& plan, const AttentionShape& shape,
                                       const Packing& padded, bool checkpointing,
                                       bool output_is_known);
/// The same, of exchanges that are `in_waves` or keep what their waves have exchanged.
AttentionVolumeParts volume_of_degrees_in(bool in_waves, const ParallelPlan& plan,
                                          const AttentionShape& shape, const Packing& padded,
                                          bool checkpointing, bool output_is_known);

}  // namespace longspan
