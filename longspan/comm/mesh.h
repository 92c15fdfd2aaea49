// The process groups of a run: for data parallelism, for sequence parallelism, and for the sharding
// of states and experts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "longspan/comm/collective_counts.h"
#include "longspan/comm/group.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

class Submeshes;

/// All groups of a run. Neighbouring ranks form a sequence-parallel group. Ranks at the same place
/// of different sequence groups form a data-parallel group. Inside a sequence group the order is
/// ring-major and Ulysses-minor: rank = ring_rank * ulysses_size + ulysses_rank.
struct Mesh {
  Group world;
  Group data;
  Group data_hosts;  // the ranks of `data`, for CPU tensors, without waits for a GPU
  Group sequence;
  Group ring;
  Group ulysses;
  Group window;           // window_size neighbours of a ring
  Group windows;          // ranks at the same place of each window of a ring
  Group shard;            // ZeRO: shard_size neighbours that shard the model's states
  Group replicas;         // ranks at the same place of each shard
  Group slices;           // num_head_slices neighbours, each with a slice of the same heads
  Group experts;          // expert_parallel_size neighbours that divide each layer's experts
  Group expert_shard;     // ranks of `shard` that divide the states of the same experts
  Group expert_replicas;  // ranks at the same place of each expert_shard
  /// Counters of all these groups. Null where there is one rank.
  std::shared_ptr<const CollectiveCounts> collectives;
  /// Groups of some of the ranks, made later. Null where there is one rank, and in a submesh.
  std::shared_ptr<Submeshes> parts;
};

/// Shuts all groups down after the last collective, in the same order on all ranks.
void shut_down(const Mesh& mesh);

/// Returns the bytes that this rank has sent in its sequence group and the groups inside it. Counts
/// identical groups once.
Traffic sequence_traffic(const Mesh& mesh);

/// Connects the ranks (Gloo on CPUs, NCCL on GPUs) and makes the groups. Gloo listens on the
/// interfaces of `where`, else on the interface towards the master address. timeout_seconds (key
/// ddp_timeout) limits every collective. Throws CommunicationError where the ranks do not come
/// within timeout_seconds (at most 300 s) plus LinkTraits::time_to_meet, or do not connect, once
/// all have come, within timeout_seconds (at most 300 s) plus time_to_meet for each of a rank's
/// groups. Throws UserError where the ranks' plans differ.
Mesh make_mesh(const Rendezvous& where, const ParallelPlan& plan, Link link,
               int64_t timeout_seconds);

/// As make_mesh(), for several plans of one world, side by side in one process.
std::vector<Mesh> make_meshes(const Rendezvous& where, const std::vector<ParallelPlan>& plans,
                              Link link, int64_t timeout_seconds);

}  // namespace longspan
