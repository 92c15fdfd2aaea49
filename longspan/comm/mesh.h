// Ranks of a run laid out as data parallel x sequence parallel, and as groups that divide states
// and experts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "longspan/comm/collective_counts.h"
#include "longspan/comm/group.h"
#include "longspan/comm/rendezvous.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// All groups of a run. Neighbouring ranks form a sequence-parallel group; ranks at the same place
/// of different sequence groups form a data-parallel group. Inside a sequence group: ring-major,
/// Ulysses-minor (rank = ring_rank * ulysses_size + ulysses_rank).
struct Mesh {
  Group world;
  Group data;
  Group data_hosts;  // the same ranks, for tensors on the CPU, with which no host waits for a GPU
  Group sequence;
  Group ring;
  Group ulysses;
  Group window;        // window_size neighbours of a ring
  Group windows;       // the ranks at the same place of each window of a ring
  Group shard;         // ZeRO: shard_size neighbours that divide the model's states among them
  Group replicas;      // the ranks at the same place of each such group
  Group slices;        // num_head_slices neighbours, which hold the slices of the same heads
  Group experts;       // expert_parallel_size neighbours that share out the experts of each layer
  Group expert_shard;  // those of a shard that hold the same experts, whose states they divide
  Group expert_replicas;  // the ranks at the same place of each such group
  /// Of all these groups. Null where there is one rank.
  std::shared_ptr<const CollectiveCounts> collectives;
};

/// Shuts all groups down, in one order on all ranks, after the last collective.
void shut_down(const Mesh& mesh);

/// What this rank has sent in its sequence group and the groups inside it. Groups that are one and
/// the same count once.
Traffic sequence_traffic(const Mesh& mesh);

/// Connects the ranks (Gloo on CPU, NCCL on CUDA) and makes the groups. Gloo listens on the
/// interfaces that `where` names, else on the one that leads to the master address.
/// timeout_seconds bounds every collective (key ddp_timeout). Throws CommunicationError when the
/// ranks do not find each other within that (300 s at most) and 10 s, UserError when plans differ.
Mesh make_mesh(const Rendezvous& where, const ParallelPlan& plan, Link link,
               int64_t timeout_seconds);

/// The same for several plans of one world, side by side in one process.
std::vector<Mesh> make_meshes(const Rendezvous& where, const std::vector<ParallelPlan>& plans,
                              Link link, int64_t timeout_seconds);

}  // namespace longspan
