// What a run saves, and how.
#pragma once

#include "longspan/liveness/host.h"
#include "longspan/report/console.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_model.h"
#include "longspan/train/run_start.h"
#include "longspan/train/workers.h"

namespace longspan {

struct RunSaving {
  /// All outlive it.
  RunSaving(const OutputSettings& config, Workers& workers, const RunModel& model,
            const RunData& data, const RunStart& start, Host& host, Console& console);
  RunSaving(const RunSaving&) = delete;
  RunSaving& operator=(const RunSaving&) = delete;

  const ModelSaver saver;
  Checkpoints checkpoints;
  PatientSaver patient_saver;  // of what is saved last
};

}  // namespace longspan
