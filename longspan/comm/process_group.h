// Process groups of torch.distributed, as Python makes them.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/comm/link.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// This process's place in a process group.
struct ProcessGroupPlace {
  int rank, size;
};

/// Returns the place in the process group of this name (ProcessGroup.group_name in Python). Throws
/// UserError for an unknown name.
ProcessGroupPlace place_in(const std::string& process_group);

/// Throws UserError unless the process group connects CUDA devices by NCCL. Longspan's own groups
/// would work, but collectives of the caller on the same tensors would not.
void require_nccl(const std::string& process_group);

/// Makes the groups of a plan for the ranks of a process group, over the group's store. The groups
/// have separate connections. `purpose` distinguishes meshes of one process group.
/// `traits`: of the groups' link; they outlive the mesh. `where`: the interface towards its address
/// is used. Waits `timeout_seconds` for the other ranks. Collective. Throws UserError,
/// CommunicationError.
Mesh mesh_of(const std::string& process_group, const std::string& purpose, const ParallelPlan& plan,
             const LinkTraits& traits, int64_t timeout_seconds, const Rendezvous& where);

}  // namespace longspan
