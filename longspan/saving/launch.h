// Which start of the program this is, among those of its launcher and of its cluster's job.
#pragma once

#include <string>

#include "longspan/comm/group.h"
#include "longspan/comm/rendezvous.h"
#include "longspan/config/output_settings.h"

namespace longspan {

struct Launch {
  std::string id;           // the same for all ranks and through restarts; each checkpoint has it
  std::string job;          // as own_job
  bool is_restart = false;  // an earlier attempt has claimed output_dir
};

/// Finds out which launch this start belongs to. It is a restart where torchrun's store knows the
/// launch, or where a cluster's job was requeued after it had saved something; the requeued job
/// takes over the launch of its newest checkpoint. Collective. Throws as all_or_none.
Launch find_launch(const OutputSettings& config, const Rendezvous& where, const Group& world);

/// Stores the launch in torchrun's store, so that workers which torchrun starts again know that
/// they are restarts. To be called on one rank.
void keep_launch(const Rendezvous& where, const Launch& launch);

/// A name of the cluster's job and of the checkpoint that this program is told to resume from: one
/// job may train several times. Empty outside of a cluster.
std::string own_job(const OutputSettings& config);

/// The launch that a requeued job continues, by the checkpoints of output_dir. Empty where
/// the job was not requeued, or had saved nothing.
std::string launch_before_requeue(const OutputSettings& config);

}  // namespace longspan
