// Finds the checkpoint that a run resumes from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/files/file_claim.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

/// True if the run resumes: the configuration asks for a resume and output_folders hold a
/// checkpoint, or this is a requeued job, which always resumes. Only file names are looked at. As
/// in LLaMA-Factory, a run resumes from the newest checkpoint unless overwrite_output_dir is set.
/// Throws UserError if resume_from_checkpoint asks for a missing checkpoint.
bool goes_on_in(const OutputSettings& config);

struct ResumePoint {
  std::string folder;
  TrainingState state;
  /// On rank 0: keeps other runs from removing the folder while this run reads it.
  std::shared_ptr<const FileClaim> in_use = nullptr;
};

/// Returns the checkpoint that resume_from_checkpoint names, or the newest intact checkpoint in
/// output_dir; the same on every rank. If a checkpoint is broken or unreadable, prints a warning
/// and tries the checkpoint before it. A restart resumes from its own launch's checkpoints, even if
/// resume_from_checkpoint names an older checkpoint or overwrite_output_dir is set. nullopt: the
/// run begins at the first step. Collective. Throws UserError if the named checkpoint is broken, or
/// all checkpoints are.
std::optional<ResumePoint> find_resume_point(const OutputSettings& config, const Group& world,
                                             Notices& notices, const Launch& launch,
                                             Events& events);

}  // namespace longspan
