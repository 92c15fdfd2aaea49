// First collectives of a link that takes memory for them.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/comm/mesh.h"

namespace longspan {

/// Runs, in each group of the mesh and of its submeshes, each kind of collective that a run starts
/// there. NCCL takes device memory for connections with a group's first all-to-all, shift or
/// reduction: users report 1 to 4 GB for 8 GPUs. Call before the free memory is measured. `device`:
/// of the groups' tensors. Collective.
void warm_up(const Mesh& mesh, at::Device device);

}  // namespace longspan
