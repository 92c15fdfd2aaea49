// Reads the environment variables of launchers, clusters and users. No torch.
#pragma once

#include "longspan/rendezvous/rendezvous.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

/// Returns this process's rendezvous from the variables of its launcher: torchrun (RANK,
/// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open MPI, PMI or Slurm. GLOO_SOCKET_IFNAME
/// gives the network interfaces. world_size is 1 without a launcher. Throws UserError if some of
/// the variables are missing.
Rendezvous rendezvous_from_environment();

/// Reads TENSORBOARD_LOGGING_DIR, as transformers does, and the variables of the Slurm job.
OutputSurroundings surroundings_of_output();

}  // namespace longspan
