// The parts that save a run's state and results.
#pragma once

#include <cstdint>

#include "longspan/account/disk_model.h"
#include "longspan/liveness/run_control.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_start.h"
#include "longspan/train/step_schedule.h"

namespace longspan {

struct ModelSettings;
struct OptimizationSettings;
struct UpdateRule;

/// All parts must outlive the RunSaving.
struct SavingParts {
  const ModelSettings& model;
  const OptimizationSettings& optimization;
  const OutputSettings& output;
  Workers& workers;
  Session& session;
  const RunData& data;
  const RunStart& start;
  const StepSchedule& schedule;
  RunControl& control;
};

class RunSaving {
 public:
  explicit RunSaving(const SavingParts& parts);
  RunSaving(const RunSaving&) = delete;
  RunSaving& operator=(const RunSaving&) = delete;

  const ModelSaver saver;
  Checkpoints checkpoints;
  PatientSaver patient_saver;  // for the final saves

  /// Returns the bytes that the run will write into output_dir after `steps_done` steps.
  DiskFacts disk(int64_t steps_done) const;

 private:
  const OutputSettings& config_;
  const UpdateRule& rule_;
  bool trains_in_bf16_;  // pure_bf16
  const StepSchedule& schedule_;
  int num_processes_;
  bool sharded_;
};

}  // namespace longspan
