// The start of a run: its launch, its identity, and the checkpoint that it resumes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/run_contents.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/workers.h"
#include "longspan/text/local_time.h"

namespace longspan {

struct OptimizationSettings;
struct OutputSettings;

struct RunStart {
  Launch launch;
  RunIdentity identity;                // contents only on rank 0
  std::optional<ResumePoint> resumed;  // nullopt: from the beginning
  std::vector<std::string> changes;    // since the checkpoint was saved; one per line, on rank 0
  /// Compared with the rows of the checkpoint instead of identity.rows: the fingerprint of texts,
  /// for a checkpoint that was saved while rows were encoded; otherwise empty.
  std::string texts;

  /// Returns the checkpoint that the run resumes from; empty for a new run.
  std::string folder() const { return resumed ? resumed->folder : ""; }
};

/// Returns the time of the run, chosen by rank 0: the checkpoint's time, or the present time. For a
/// checkpoint of an earlier version, which has no such time: the time at which the checkpoint was
/// saved. Collective.
LocalTime template_time_of_run(const Group& world, const std::optional<ResumePoint>& resumed);

/// Completes `start`, which already has its launch, its identity without contents, and the
/// checkpoint, if any. Reads the contents of the files. Collective. Throws as all_or_none if the
/// checkpoint belongs to another run.
void complete_run_start(const ContentSettings& files, const OptimizationSettings& optimization,
                        const OutputSettings& output, Workers& workers, Events& events,
                        RunStart& start);

}  // namespace longspan
