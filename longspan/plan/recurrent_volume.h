// What layers with a recurrence send, and how long they take, where ranks share a row. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {

/// Do the ranks that share this row in that way exchange its tokens for heads? Rows with forks
/// always go so: their branches go on from another place than the token before.
bool goes_by_heads(RecurrentWay way, const Packing& row);

/// Heads [begin, end).
struct HeadsOfRank {
  int64_t begin, end;
};
/// Which of a layer's heads a rank works on. Counts differ by one at most.
HeadsOfRank heads_of_rank_in(int64_t rank, int64_t num_ranks, int64_t num_heads);
/// Of `num_others` heads, each of which goes with num_heads / num_others heads, those that go with
/// these.
HeadsOfRank heads_along(const HeadsOfRank& heads, int64_t num_heads, int64_t num_others);

/// Bytes of one layer, by plan.recurrent_way, of all ranks that share the row together; where the
/// layer's input has a gradient. With `checkpointing` the backward sends once more what the forward
/// sends.
///
/// By heads (sequence_parallel/whole_sequence.h; rows with forks always go this way): a rank gets
/// its value heads, their gates, and the queries and keys that go with them, and gives outputs
/// back. By states (sequence_parallel/row_pieces.h): a token whose rank is not that of its piece
/// goes there, and its output comes back; and, of no more bytes for a longer row, all ranks get
/// each other's last inputs of the convolution, and maps of states in fp32.
AttentionVolume recurrent_volume(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes,
                                 bool checkpointing);

/// What one layer adds to a rank's memory (plan/attention_memory.h), by plan.recurrent_way: what
/// goes in and what comes out is there as the rank's tokens and as its heads, or its piece, and
/// with states the maps of all pieces.
AttentionMemory recurrent_memory(const ParallelPlan& plan, const Packing& padded,
                                 const RecurrenceSpec& net, int64_t element_bytes);

/// Seconds of one layer's recurrence, forward and backward, of the slowest rank, by
/// plan.recurrent_way: its gemms, then what it sends. By states each head is
/// key_dim numbers wider, for the map. To compare the two ways.
double recurrent_seconds(const ParallelPlan& plan, const Packing& row, const RecurrenceSpec& net,
                         int64_t element_bytes, bool checkpointing, const ClusterModel& cluster);

}  // namespace longspan
