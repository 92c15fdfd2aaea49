// Ranks of a run laid out as data parallel x sequence parallel, and as groups that divide states
// and experts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Where this process stands among its peers, read from the launcher's environment: torchrun (RANK,
/// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open MPI, PMI or Slurm.
struct Rendezvous {
  int rank = 0, world_size = 1, local_rank = 0;
  int local_world_size = 1;  // processes on this machine
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// The launcher already serves a key-value store at the master address (torchrun's agent);
  /// otherwise rank 0 does.
  bool launcher_hosts_store = false;
  /// Keeps keys of this start of the workers apart from those of earlier ones (see joined_start).
  std::string store_prefix;
};

/// Reads the environment; world_size 1 when no launcher is found. Throws UserError on half-set
/// variables.
Rendezvous rendezvous_from_environment();

/// Returns `where` with a store_prefix that all workers of this start share and that no earlier
/// start had. torchrun's count of restarts cannot serve as one: each machine counts its own.
/// Returns `where` unchanged where no launcher serves the store, which is then as new as the
/// workers. Waits for all workers. Throws CommunicationError when they have not come after
/// timeout_seconds (300 at most) and 10 s.
Rendezvous joined_start(Rendezvous where, int64_t timeout_seconds);

/// All groups of a run. Neighbouring ranks form a sequence-parallel group; ranks at the same place
/// of different sequence groups form a data-parallel group. Inside a sequence group: ring-major,
/// Ulysses-minor (rank = ring_rank * ulysses_size + ulysses_rank).
struct Mesh {
  Group world;
  Group data;
  Group sequence;
  Group ring;
  Group ulysses;
  Group window;    // LoongTrain: window_size neighbours of a ring
  Group windows;   // LoongTrain: the ranks at the same place of each window of a ring
  Group shard;     // ZeRO: shard_size neighbours that divide the model's states among them
  Group replicas;  // the ranks at the same place of each such group
  Group slices;    // XTuner: num_head_slices neighbours, which hold the slices of the same heads
  Group experts;   // expert_parallel_size neighbours that share out the experts of each layer
  Group expert_shard;     // those of a shard that hold the same experts, whose states they divide
  Group expert_replicas;  // the ranks at the same place of each such group
};

/// Shuts all groups down, in one order on all ranks, after the last collective.
void shut_down(const Mesh& mesh);

/// What this rank has sent in its sequence group and the groups inside it. Groups that are one and
/// the same count once.
Traffic sequence_traffic(const Mesh& mesh);

/// Connects the ranks (Gloo on CPU, NCCL on CUDA) and makes the groups. Gloo listens on the
/// interfaces that GLOO_SOCKET_IFNAME names, else on the one that leads to the master address.
/// timeout_seconds bounds every collective (key ddp_timeout). Throws CommunicationError when the
/// ranks do not find each other within that (300 s at most) and 10 s, UserError when plans differ.
Mesh make_mesh(const Rendezvous& where, const ParallelPlan& plan, Link link,
               int64_t timeout_seconds);

/// The same for several plans of one world, side by side in one process.
std::vector<Mesh> make_meshes(const Rendezvous& where, const std::vector<ParallelPlan>& plans,
                              Link link, int64_t timeout_seconds);

}  // namespace longspan
