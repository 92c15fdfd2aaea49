// What launchers, clusters and users tell the program by environment variables. No torch.
#pragma once

#include "longspan/comm/rendezvous.h"
#include "longspan/config/output_settings.h"

namespace longspan {

/// Where this process stands, as its launcher says it: torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT), Open MPI, PMI or Slurm; and GLOO_SOCKET_IFNAME. world_size 1 when no
/// launcher is found. Throws UserError on half-set variables.
Rendezvous rendezvous_from_environment();

/// TENSORBOARD_LOGGING_DIR, which transformers reads too, and Slurm's job.
OutputSurroundings surroundings_of_output();

}  // namespace longspan
