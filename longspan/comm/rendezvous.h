// Where a process of a run stands among the others, and where they meet. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

struct LinkTraits;

/// Where this process stands among its peers. By itself it is a run of one process. `longspan`
/// reads it from its launcher's environment (cli/process/launcher_environment.h).
struct Rendezvous {
  int rank = 0, world_size = 1, local_rank = 0;
  int local_world_size = 1;  // processes on this machine
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// The network interfaces on which Gloo listens, a comma list; empty: the one that leads to the
  /// master address.
  std::string interfaces;
  /// The launcher already serves a key-value store at the master address (torchrun's agent);
  /// otherwise rank 0 does.
  bool launcher_hosts_store = false;
  /// Keeps keys of this start of the workers apart from those of earlier ones (see joined_start).
  std::string store_prefix;
  /// How the ranks reach each other; null: by the link of what they compute on.
  const LinkTraits* link = nullptr;

  /// Whether this process meets anybody in a store: other ranks, or its launcher.
  bool has_peers() const { return world_size > 1 || launcher_hosts_store; }
  /// Whether the others' store ends with this process.
  bool serves_store() const { return rank == 0 && world_size > 1 && !launcher_hosts_store; }
};

/// Returns `where` with a store_prefix that all workers of this start share and that no earlier
/// start had. torchrun's count of restarts cannot serve as one: each machine counts its own.
/// Returns `where` unchanged where no launcher serves the store, which is then as new as the
/// workers. Waits for all workers. Throws CommunicationError when they have not come after
/// timeout_seconds (300 at most) and 10 s.
Rendezvous joined_start(Rendezvous where, int64_t timeout_seconds);

}  // namespace longspan
