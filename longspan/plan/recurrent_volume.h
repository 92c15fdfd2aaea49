// Bytes and time of layers with a recurrence when ranks share rows. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// True if the ranks exchange the row's tokens for heads. Rows with forks always do: the state of a
/// branch continues from another token than the preceding one.
bool goes_by_heads(RecurrentWay way, const Packing& row);

/// Heads [begin, end).
struct HeadsOfRank {
  int64_t begin, end;
};
/// Returns the heads of a layer that a rank processes. Counts differ by at most one.
HeadsOfRank heads_of_rank_in(int64_t rank, int64_t num_ranks, int64_t num_heads);
/// Returns those of `num_others` heads that belong to `heads`; each of them belongs to num_heads /
/// num_others heads.
HeadsOfRank heads_along(const HeadsOfRank& heads, int64_t num_heads, int64_t num_others);

/// Returns the bytes of one layer by plan.recurrent_way that all ranks sharing the row send, if the
/// layer's input requires a gradient. With `checkpointing` the backward repeats the forward's
/// exchange.
///
/// By heads (sequence_parallel/whole_sequence.h; rows with forks always): a rank receives its value
/// heads, their gates, and the queries and keys that belong to them, and returns outputs. By states
/// (sequence_parallel/row_slices.h): a token goes to the rank of its slice, and its output returns.
/// All ranks also exchange the last inputs of the convolution, and maps of states in fp32; these
/// bytes do not grow with the row.
AttentionVolume recurrent_volume(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes,
                                 bool checkpointing);

/// Returns the memory that one layer adds on a rank (plan/attention_memory.h), by
/// plan.recurrent_way. Inputs and outputs exist both as the rank's tokens and as its heads or its
/// slice; by states also the maps of all slices.
AttentionMemory recurrent_memory(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes);

/// Returns the seconds of one layer's recurrence, forward and backward, on the slowest rank, by
/// plan.recurrent_way: its gemms, then its communication. If states are passed, a head's state has
/// key_dim more columns, for the map. Only for comparing the two ways.
double recurrent_seconds(const ParallelPlan& plan, const Packing& row, const RecurrenceSpec& net,
                         int64_t element_bytes, bool checkpointing, const ClusterModel& cluster);

}  // namespace longspan
