// Where a run begins: which start of which run it is, and which checkpoint it resumes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/comm/notices.h"
#include "longspan/report/console.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/training_state.h"
#include "longspan/text/moment.h"
#include "longspan/train/run_data.h"
#include "longspan/train/trained_model.h"

namespace longspan {

struct Config;

struct RunStart {
  Launch launch;
  RunIdentity identity;                // contents on rank 0 alone
  std::optional<ResumePoint> resumed;  // nullopt: from the beginning
  std::vector<std::string> changes;    // since the checkpoint was saved; a line each, on rank 0

  /// The checkpoint that the run resumes from; empty: it begins at the first step.
  std::string folder() const { return resumed ? resumed->folder : ""; }
};

/// The moment of the run, which rank 0 names: the checkpoint's moment, or the present time. For a
/// checkpoint of an earlier version, which has none, it is the time when it was saved. Collective.
Moment moment_of_run(const Group& world, const std::optional<ResumePoint>& resumed);

/// `start`: with its launch and the checkpoint, if any. `model`: with rope_scaling, as it is
/// trained. `moment`: of the rows. Collective. Throws as all_or_none where the checkpoint is
/// another run's.
void complete_run_start(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data, const Moment& moment,
                        Notices& notices, Console& console, RunStart& start);

}  // namespace longspan
