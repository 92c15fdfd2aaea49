// The place of a machine or pod among those of its job. No torch.
#pragma once

#include <optional>
#include <string>

namespace longspan {

/// A job on several machines, with one launcher on each. Unset members: not in the environment.
struct NodePlace {
  std::optional<int> num_nodes, node_rank;
  std::optional<int> processes_per_node;
  std::optional<int> max_restarts;
  std::optional<std::string> master_address;
  std::optional<int> master_port;
};

/// Their product, the number of ranks, must fit an int.
inline constexpr int kMostProcesses = 4096, kMostMachines = 65536;

/// Returns the place by the variables of Kubeflow's operators (PyTorchJob, TrainJob):
///   - PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MAX_RESTARTS, PET_MASTER_ADDR and
///     PET_MASTER_PORT (or PET_RDZV_ENDPOINT), which torchrun reads as defaults.
///   - Without them, in a pod of Kubernetes: WORLD_SIZE and RANK count pods.
/// nullopt without such variables, and in a process that torchrun, mpirun or srun has started.
/// Throws UserError for numbers that are none, and for elastic jobs (PET_NNODES=1:4).
std::optional<NodePlace> node_from_environment();

/// Removes the variables of node_from_environment(), before torchrun gets the place as arguments.
void remove_node_from_environment();

/// Whether this process runs in a pod of Kubernetes.
bool is_in_pod();

}  // namespace longspan
