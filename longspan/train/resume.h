// Which checkpoint a run goes on from.
#pragma once

#include <optional>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/config/config.h"
#include "longspan/train/console.h"
#include "longspan/train/training_state.h"

namespace longspan {

/// Does the configuration ask to go on from a checkpoint of output_dir, and is there one? Looks at
/// names only. LLaMA-Factory's rule: from the newest one, unless overwrite_output_dir is set.
/// Throws UserError when resume_from_checkpoint asks for one that is not there.
bool goes_on_in(const Config& config);

struct ResumePoint {
  std::string folder;
  TrainingState state;
};

/// Where this start of the program stands among those of its launcher (torchrun).
struct Launch {
  std::string id;           // the same for all ranks and through restarts
  bool is_restart = false;  // an earlier attempt had made output_dir its own
};

/// The checkpoint that resume_from_checkpoint names, or the newest whole one in output_dir. A
/// broken one is named in a warning, and the one before it taken. A restart goes on from what its
/// own launch has saved, also where overwrite_output_dir is set. nullopt: from the beginning. The
/// same on every rank; collective. Throws UserError: the named one is broken, all are.
std::optional<ResumePoint> find_resume_point(const Config& config, const Group& world,
                                             const Launch& launch, Console& console);

}  // namespace longspan
