// Starts worker processes of `longspan` through torchrun.
#pragma once

#include <optional>
#include <string>

#include "cli/commands.h"
#include "longspan/config/parallel_settings.h"
#include "longspan/plan/device_choice.h"

namespace longspan {

/// How many processes a run has, and where.
struct LaunchPlan {
  int num_nodes = 1, node_rank = 0, processes_per_node = 1;
  std::string master_address = "127.0.0.1";
  std::optional<int> master_port;   // nullopt: any free one
  int64_t patience_seconds = 1800;  // ddp_timeout

  int world_size() const { return num_nodes * processes_per_node; }
};

/// Was this process started by torchrun, mpirun or srun?
bool is_launched();

/// From the key nproc_per_node and LLaMA-Factory's environment variables: NPROC_PER_NODE, NNODES,
/// NODE_RANK, MASTER_ADDR, MASTER_PORT. Without either: a process for each GPU, or one on a CPU.
/// Throws UserError: not a number, contradictions, several nodes without MASTER_ADDR.
LaunchPlan make_launch_plan(const ParallelSettings& config, const DeviceChoice& device);

/// Looks at MASTER_ADDR and MASTER_PORT before anything is started. Throws UserError: the name has
/// no address, or not one of this machine where it is the only one; this machine is to listen at
/// the port and cannot; what listens there on node 0 is no torchrun's.
void check_meeting_place(const LaunchPlan& plan);

/// torchrun of the Python environment whose torch is in use: $TORCHRUN, the one beside that
/// environment's python, or the first on PATH. nullopt when there is none.
std::optional<std::string> find_torchrun();

/// Becomes torchrun with `longspan <words>` as its workers. Returns only by throwing UserError (no
/// torchrun, too few open files allowed). check_meeting_place comes first: it can take a minute, in
/// which signals are the caller's.
[[noreturn]] void launch(const LaunchPlan& plan, const Arguments& words);

/// From now on SIGTERM and SIGUSR1 wait, in processes that this one starts or becomes too.
void hold_stop_signals();

}  // namespace longspan
