// A process's place in its run, and the address where the processes meet. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

struct LinkTraits;

/// A process's place among its peers. The default is a run of one process. `longspan` reads the
/// place from the launcher's environment (cli/process/launcher_environment.h).
struct Rendezvous {
  int rank = 0, world_size = 1, local_rank = 0;
  int local_world_size = 1;  // processes on this machine
  /// The launcher shows each process GPUs of its own (srun --gpus-per-task), not the machine's.
  bool has_own_gpus = false;
  int threads =
      0;  // of each process, if the launcher gives a number (srun --cpus-per-task); else 0
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// Network interfaces on which Gloo listens, as a comma list; empty: the interface towards the
  /// master address.
  std::string interfaces;
  /// The launcher (torchrun's agent) serves a key-value store at the master address; else rank 0
  /// does.
  bool launcher_hosts_store = false;
  /// Separates the keys of this start of the workers from the keys of earlier starts (see
  /// joined_start).
  std::string store_prefix;
  /// The transport between ranks; null: the usual transport of the ranks' device.
  const LinkTraits* link = nullptr;

  /// The processes among which the GPUs that this process sees are divided.
  int processes_on_gpus() const { return has_own_gpus ? 1 : local_world_size; }
  /// Whether this process meets others in a store: other ranks, or its launcher.
  bool has_peers() const { return world_size > 1 || launcher_hosts_store; }
  /// Whether other ranks use a store that ends with this process.
  bool serves_store() const { return rank == 0 && world_size > 1 && !launcher_hosts_store; }
};

/// Returns `where` with a store_prefix that all workers of this start share and no earlier start
/// had. (torchrun's restart count cannot serve as the prefix: each machine counts its own
/// restarts.) Returns `where` unchanged where no launcher serves the store, since the store is then
/// as new as the workers. Waits for all workers. Throws CommunicationError where a worker is
/// missing after timeout_seconds (at most 300 s) plus 10 s.
Rendezvous joined_start(Rendezvous where, int64_t timeout_seconds);

}  // namespace longspan
