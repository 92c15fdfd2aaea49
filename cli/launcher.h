// Starts worker processes of `longspan` through torchrun.
#pragma once

#include <optional>
#include <string>

#include "cli/commands.h"
#include "longspan/cuda/device_choice.h"
#include "longspan/rendezvous/rendezvous.h"
#include "longspan/settings/parallel_settings.h"

namespace longspan {

/// The number of a run's processes, and their machines.
struct LaunchPlan {
  int num_nodes = 1, node_rank = 0, processes_per_node = 1;
  std::string master_address = "127.0.0.1";
  std::optional<int> master_port;   // nullopt: any free port
  int64_t patience_seconds = 1800;  // ddp_timeout
  int max_restarts = 0;             // where MAX_RESTARTS is not set
  bool is_pod = false;              // of a job whose pods may start minutes apart

  int world_size() const { return num_nodes * processes_per_node; }
};

/// True if torchrun, mpirun or srun started this process.
bool is_launched();

/// Returns the place among the processes that the launcher started; without one, that of a lone
/// process, also where RANK and WORLD_SIZE count the pods of a job.
Rendezvous place_of_worker();

/// Makes the plan from the key nproc_per_node, from LLaMA-Factory's environment variables
/// (NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT), and from those of Kubeflow's
/// operators (node_environment.h). Default: one process per GPU, or one process on a CPU. Throws
/// UserError for an invalid number, for contradictions, and for several nodes without MASTER_ADDR.
LaunchPlan make_launch_plan(const ParallelSettings& config, const DeviceChoice& device);

/// Checks MASTER_ADDR and MASTER_PORT before anything is started. Throws UserError in these cases:
/// - MASTER_ADDR cannot be resolved, or names another machine although the run has one node.
/// - On node 0: this machine cannot listen at the port.
/// - The port of node 0 is taken by a program other than torchrun.
void check_meeting_place(const LaunchPlan& plan);

/// Returns the torchrun of the Python environment whose torch is in use: $TORCHRUN, the torchrun
/// next to that environment's python, or the first on PATH. nullopt if no torchrun is found.
std::optional<std::string> find_torchrun();

/// Replaces this process by torchrun with `longspan <words>` as its workers. Returns only by
/// throwing UserError (no torchrun, or a too low limit of open files). Call check_meeting_place()
/// before launch(). The check can take a minute, and the caller must handle signals during the
/// check.
[[noreturn]] void launch(const LaunchPlan& plan, const Arguments& words);

/// Blocks SIGTERM and SIGUSR1 in this process from now on. Child processes, and a program that
/// replaces this process by exec, inherit the block.
void hold_stop_signals();

}  // namespace longspan
