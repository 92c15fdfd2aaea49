// How long the attention of a layer takes under a plan: to compare plans, not to foretell runs. No
// torch.
//
// Work: the FLOP of the layer's spec for each pair of a query and a key that it sees
// (spec/attention_spec.h), in tiles that are computed whole: what the busiest rank attends by the
// method's geometry. Ring kinds add the merge of every hop's output. Bytes:
// plan/attention_volume.h, each rank's share over the link that it crosses; ring hops, and gathers
// after the first, fully overlap the previous step's compute; head exchanges overlap only with head
// waves.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// What the ranks run on. Rates are those of one rank. These are assumed machines: nothing is
/// measured where the program runs, and only comparisons of estimates mean something.
struct ClusterModel {
  int ranks_per_machine = 1;
  double forward_flops = 0, backward_flops = 0;  // FLOP/s of attention on long rows
  double memory_bytes = 0;                       // bytes/s of elementwise work
  double inside_bytes = 0, between_bytes = 0;    // bytes/s sent inside a machine, to another one
  double inside_delay = 0, between_delay = 0;    // seconds a message
  double call_seconds = 0;                       // a kernel call
  int64_t tile = 1;                              // queries and keys of a tile
  bool copies_cost_work = false;  // the ranks' own cores move the bytes, at inside_bytes
  bool shares_port = false;       // between_bytes is of a machine, for all its ranks that send
};

/// Assumed constants: an A100 cluster, or CPUs under Gloo. The .cpp says which of them are sourced
/// and which are guesses.
ClusterModel cluster_model(bool cuda, int ranks_per_machine, int64_t element_bytes);

/// Seconds of one layer's attention, forward and backward, of the slowest rank of the slowest
/// sequence group. `row`: before padding.
double attention_seconds(const ParallelPlan& plan, const AttentionShape& shape, const Packing& row,
                         bool checkpointing, const ClusterModel& cluster);

/// The row with the padding that the plan's method adds.
Packing padded_row(const ParallelPlan& plan, const Packing& row);

}  // namespace longspan
