// Estimates the time of a layer's attention under a plan. The estimates serve to compare plans, not
// to predict the time of a run. No torch.
//
// Work: the busiest rank's FLOP by the method's geometry. The layer's spec gives the FLOP of each
// pair of a query and a visible key (spec/attention_spec.h); kernels compute whole tiles. Rings
// also merge outputs in every hop. Communication: each rank's share of the bytes in
// plan/attention_volume.h, over the link between sender and receiver. Gathers after the first
// overlap fully with the compute of the previous step. Ring hops also overlap with the compute of
// the next step on earlier parts (plan/ring_parts.h). Head exchanges overlap only with head waves.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/network_rates.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Hardware of the ranks; rates are per rank. The values are assumptions, but for measured links
/// (NetworkRates). Only comparisons of estimates are meaningful.
struct ClusterModel {
  int ranks_per_machine = 1;
  double forward_flops = 0, backward_flops = 0;  // FLOP/s of attention on long rows
  double memory_bytes = 0;                       // bytes/s of elementwise work
  double inside_bytes = 0, between_bytes = 0;    // bytes/s within a machine, and to another machine
  double inside_delay = 0, between_delay = 0;    // seconds per message
  double call_seconds = 0;                       // seconds per kernel call
  int64_t tile = 1;                              // queries and keys per tile
  bool copies_cost_work = false;  // the ranks' own cores copy the bytes, at the rate inside_bytes
  bool shares_port = false;       // between_bytes is per machine, shared by its sending ranks
};

/// Returns assumed constants for an A100 cluster, or for CPUs under Gloo. The .cpp states for each
/// constant the source, or that the constant is a guess. The measured rates of `network` take the
/// place of the constants of links.
ClusterModel cluster_model(bool cuda, int ranks_per_machine, int64_t element_bytes,
                           const NetworkRates& network = {});

/// Returns the seconds of one layer's attention, forward and backward, on the slowest rank of the
/// slowest sequence group. `row`: the row before padding.
double attention_seconds(const ParallelPlan& plan, const AttentionShape& shape, const Packing& row,
                         bool checkpointing, const ClusterModel& cluster);

/// Returns the row with the padding of the plan's method.
Packing padded_row(const ParallelPlan& plan, const Packing& row);

}  // namespace longspan
