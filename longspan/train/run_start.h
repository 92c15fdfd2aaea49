// The start of a run: its launch, its identity, and the checkpoint that it resumes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/trained_model.h"
#include "longspan/text/local_time.h"
#include "longspan/train/run_data.h"

namespace longspan {

struct Config;

struct RunStart {
  Launch launch;
  RunIdentity identity;                // contents only on rank 0
  std::optional<ResumePoint> resumed;  // nullopt: from the beginning
  std::vector<std::string> changes;    // since the checkpoint was saved; one per line, on rank 0

  /// Returns the checkpoint that the run resumes from; empty for a new run.
  std::string folder() const { return resumed ? resumed->folder : ""; }
};

/// Returns the time of the run, chosen by rank 0: that of the checkpoint, or the present time. For
/// a checkpoint of an earlier version, which has none: the time when it was saved. Collective.
LocalTime template_time_of_run(const Group& world, const std::optional<ResumePoint>& resumed);

/// Completes `start`, which already has its launch and the checkpoint, if any. `model`: as it is
/// trained, with rope_scaling. `template_time`: of the rows. Collective. Throws as all_or_none if
/// the checkpoint belongs to another run.
void complete_run_start(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data,
                        const LocalTime& template_time, Notices& notices, Events& events,
                        RunStart& start);

}  // namespace longspan
