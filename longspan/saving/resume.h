// Which checkpoint a run goes on from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "longspan/checkpoint/file_claim.h"
#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/config.h"
#include "longspan/report/console.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/training_state.h"

namespace longspan {

/// Does the configuration ask to go on from a checkpoint of output_folders, and is there one? Or is
/// this a requeued job, which goes on whatever it asks? Looks at names only. LLaMA-Factory's rule:
/// from the newest one, unless overwrite_output_dir is set. Throws UserError when
/// resume_from_checkpoint asks for one that is not there.
bool goes_on_in(const Config& config);

struct ResumePoint {
  std::string folder;
  TrainingState state;
  /// On rank 0: keeps another run from removing the folder while this one reads it.
  std::shared_ptr<const FileClaim> in_use = nullptr;
};

/// The checkpoint that resume_from_checkpoint names, or the newest whole one in output_dir. One
/// that is broken or cannot be read is named in a warning, and the one before it taken. A restart
/// goes on from what its own launch has saved, also where resume_from_checkpoint names an older one
/// or overwrite_output_dir is set. nullopt: from the beginning. The same on every rank; collective.
/// Throws UserError: the named one is broken, all are.
std::optional<ResumePoint> find_resume_point(const Config& config, const Group& world,
                                             Notices& notices, const Launch& launch,
                                             Console& console);

}  // namespace longspan
