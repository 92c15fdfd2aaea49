// Where a run begins: which run it is, and what it goes on from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/comm/notices.h"
#include "longspan/config/config.h"
#include "longspan/report/console.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/training_state.h"
#include "longspan/train/run_data.h"
#include "longspan/train/trained_model.h"

namespace longspan {

struct RunStart {
  RunIdentity identity;                // contents on rank 0 alone
  std::optional<ResumePoint> resumed;  // nullopt: from the beginning
  std::vector<std::string> changes;    // since that was saved; a line each, on rank 0

  /// What the run goes on from; empty: from the beginning.
  std::string folder() const { return resumed ? resumed->folder : ""; }
};

/// `model`: with rope_scaling, as it is trained. Collective. Throws as all_or_none: what is saved
/// cannot be gone on from, or is of another run.
RunStart find_run_start(const Config& config, const Mesh& mesh, const ModelConfig& model,
                        const TrainedModel& trained, const RunData& data, const Launch& launch,
                        Notices& notices, Console& console);

}  // namespace longspan
