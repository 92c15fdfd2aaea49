// Bytes and time of layers with a recurrence when ranks share rows. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// True if the ranks exchange the row's tokens for heads. Always true for rows with forks, because
/// the state of a branch does not continue from the preceding token of the row.
bool goes_by_heads(RecurrentWay way, const Packing& row);

/// Heads [begin, end).
struct HeadsOfRank {
  int64_t begin, end;
};
/// Returns the heads of a layer that a rank processes. Counts differ by at most one.
HeadsOfRank heads_of_rank_in(int64_t rank, int64_t num_ranks, int64_t num_heads);
/// Returns the range of `num_others` heads (key heads) that belong to `heads` (value heads). Each
/// of the `num_others` heads belongs to num_heads / num_others consecutive heads.
HeadsOfRank heads_along(const HeadsOfRank& heads, int64_t num_heads, int64_t num_others);

/// Returns the bytes that all ranks of the row send for one layer by plan.recurrent_way, if the
/// layer's input requires a gradient. With `checkpointing` the backward repeats the forward's
/// exchange.
///
/// By heads (sequence_parallel/whole_sequence.h; always for rows with forks): a rank receives its
/// value heads with their gates, queries and keys, and returns the outputs. By states
/// (sequence_parallel/row_slices.h): a token goes to the rank of the token's slice, and the output
/// returns. By states, all ranks also exchange the last inputs of the convolution, and maps of
/// states in fp32. The bytes of this exchange do not grow with the row.
AttentionVolume recurrent_volume(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes,
                                 bool checkpointing);

/// Returns the largest number of tokens of a slice's first document, if it goes on from an earlier
/// slice; 0 by heads. The recurrence of these tokens also has the map of states.
int64_t entering_tokens(const ParallelPlan& plan, const Packing& padded);

/// Returns the memory that one layer adds on a rank (plan/attention_memory.h), by
/// plan.recurrent_way. Inputs and outputs exist twice: as the rank's tokens, and as the rank's
/// heads or slice. By states, the maps of all slices exist too, and, of the
/// entering_tokens(), the values and outputs with the columns of the map, in fp32.
AttentionMemory recurrent_memory(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes);

/// Returns the seconds of one layer's recurrence, forward and backward, on the slowest rank, by
/// plan.recurrent_way: the time of the gemms plus the time of the communication. By states, a
/// head's state has key_dim more columns, for the map. The estimate serves only to compare the two
/// ways.
double recurrent_seconds(const ParallelPlan& plan, const Packing& row, const RecurrenceSpec& net,
                         int64_t element_bytes, bool checkpointing, const ClusterModel& cluster);

}  // namespace longspan
