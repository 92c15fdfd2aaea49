// Identifies a launch: the first start of a run's processes, with all later starts of the same run
// by torchrun or by a requeued cluster job.
#pragma once

#include <string>

#include "longspan/comm/group.h"
#include "longspan/rendezvous/rendezvous.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

struct Launch {
  std::string id;           // the same on all ranks and across restarts; saved in each checkpoint
  std::string job;          // as own_job
  bool is_restart = false;  // an earlier attempt has claimed output_dir
};

/// Returns the launch of this start. The start is a restart if torchrun's store knows the launch,
/// or if a cluster job was requeued after the job had saved something; the requeued job continues
/// the launch of its newest checkpoint. Collective. Throws as all_or_none.
Launch find_launch(const OutputSettings& config, const Rendezvous& where, const Group& world);

/// Stores the launch in torchrun's store, so that workers that torchrun restarts recognize it.
/// Called on one rank.
void keep_launch(const Rendezvous& where, const Launch& launch);

/// Returns a name made of the cluster job and the checkpoint to resume from, since one job may
/// train several times. Empty outside a cluster.
std::string own_job(const OutputSettings& config);

/// Returns the launch that a requeued job continues, from the checkpoints of output_dir. Empty if
/// the job was not requeued, or had not saved anything.
std::string launch_before_requeue(const OutputSettings& config);

}  // namespace longspan
