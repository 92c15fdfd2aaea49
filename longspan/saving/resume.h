// Which checkpoint a run resumes from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "longspan/checkpoint/file_claim.h"
#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/output_settings.h"
#include "longspan/report/console.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/training_state.h"

namespace longspan {

/// Does the configuration ask to resume from a checkpoint of output_folders, and is there one? Or
/// is this a requeued job, which resumes whatever the configuration asks? Looks at names only.
/// LLaMA-Factory's rule: a run resumes from the newest one, unless overwrite_output_dir is set.
/// Throws UserError when resume_from_checkpoint asks for one that is not there.
bool goes_on_in(const OutputSettings& config);

struct ResumePoint {
  std::string folder;
  TrainingState state;
  /// On rank 0: keeps another run from removing the folder while this one reads it.
  std::shared_ptr<const FileClaim> in_use = nullptr;
};

/// The checkpoint that resume_from_checkpoint names, or the newest whole one in output_dir. Where
/// one is broken or cannot be read, a warning names it, and the one before it is taken. A restart
/// resumes from what its own launch has saved, also where resume_from_checkpoint names an older one
/// or overwrite_output_dir is set. nullopt: the run begins at the first step. The same on every
/// rank. Collective. Throws UserError where the named checkpoint is broken, or all are.
std::optional<ResumePoint> find_resume_point(const OutputSettings& config, const Group& world,
                                             Notices& notices, const Launch& launch,
                                             Console& console);

}  // namespace longspan
