// The checkpoints of a run, also when the disk is full.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/saving/resume.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/settings/output_settings.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_saving.h"
#include "longspan/train/run_state.h"

namespace longspan {

/// Collective members throw as all_or_none.
class RunCheckpoints {
 public:
  /// All arguments must outlive this object.
  RunCheckpoints(const OutputSettings& config, Workers& workers, const Session& model,
                 RunSaving& saving, RunState& state, RunReports& reports);

  /// Restores weights, optimizer, log and totals from a checkpoint, for a run of `total_steps`.
  /// Returns the totals. Throws UserError. Collective.
  RunTotals resume(const ResumePoint& from, int64_t total_steps);

  /// Saves checkpoint-N of the steps so far. If the disk is full, prints a warning and saves
  /// nothing, and training continues; existing checkpoints stay intact. Collective.
  void save(const RunTotals& totals);
  /// True if a checkpoint was left out for lack of space and now fits. Collective.
  bool can_catch_up(const RunTotals& totals) const;
  /// Saves a checkpoint of the steps so far before the run ends, unless this checkpoint exists;
  /// waits for disk space. Returns false if the wait was interrupted. Collective.
  bool save_last(const RunTotals& totals);
  /// True if a run can resume from the checkpoints; otherwise the checkpoints hold only the model.
  bool hold_state() const { return !config_.save_only_model; }

 private:
  /// Saves the checkpoint in this folder. Collective.
  void save_into(const std::string& output_dir, const RunTotals& totals);

  const OutputSettings& config_;
  Workers& workers_;
  const Session& model_;
  RunSaving& saving_;
  RunState& state_;
  RunReports& reports_;
  int64_t last_saved_step_ = -1;
  bool is_owed_ = false;  // the last checkpoint did not fit on the disk
};

}  // namespace longspan
