// The checkpoints of a run, also when the disk is full.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "longspan/memory/host_copies.h"
#include "longspan/saving/background_saving.h"
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

  /// Saves checkpoint-N of the steps so far, after the checkpoint in progress. If the disk is full,
  /// prints a warning and saves nothing, and training continues; existing checkpoints stay intact.
  /// With save_async, returns once the checkpoint has been copied. Collective.
  void save(const RunTotals& totals);
  /// At the end of a step: goes on with the checkpoint in progress, if all ranks have done their
  /// part. A full disk is handled as in save(). Collective.
  void go_on();
  /// Waits for the checkpoint in progress. A full disk is handled as in save(). Collective.
  void finish(const RunTotals& totals);
  /// As finish(), but every error on which the ranks agree is a warning, for a run that ends.
  void finish_or_warn(const RunTotals& totals);
  /// True if a checkpoint was left out for lack of space and now fits. Collective.
  bool can_catch_up(const RunTotals& totals) const;
  /// Saves a checkpoint of the steps so far before the run ends, after the checkpoint in progress
  /// and unless it is this one; waits for disk space. Returns false if the wait was interrupted.
  /// Collective.
  bool save_last(const RunTotals& totals);
  /// True if a run can resume from the checkpoints; otherwise the checkpoints hold only the model.
  bool hold_state() const { return !config_.save_only_model; }

 private:
  using Written = std::unique_ptr<CheckpointWrite>;

  /// Returns what a checkpoint saves. Collective.
  CheckpointContent content_of(const RunTotals& totals);
  /// Saves the checkpoint in this folder. Collective.
  void save_into(const std::string& output_dir, const RunTotals& totals);
  /// Copies the checkpoint, and begins to write the copy. Returns false, with a warning, if this
  /// cannot be done. Collective.
  bool begins_in_background(const RunTotals& totals);
  /// Counts the time of `work`, in which no step is computed.
  Written waited_for(const std::function<Written()>& work);
  /// Tells of a complete checkpoint. Null: it is not complete yet.
  void end_of(const Written& write);
  void unless_full(int64_t step, const std::function<void()>& save);
  /// Tells a user of Kubernetes, once, how long a save takes.
  void remark(double seconds, const Progress& progress);
  /// Tells the heartbeat that the saving of checkpoint-`step` is waited for.
  void stand_at(const RunTotals& totals, int64_t step);

  const OutputSettings& config_;
  Workers& workers_;
  const Session& model_;
  RunSaving& saving_;
  RunState& state_;
  RunReports& reports_;
  int64_t last_saved_step_ = -1;
  bool is_owed_ = false;  // the last checkpoint did not fit on the disk
  bool has_said_grace_ = false;
  std::optional<HostCopies> copies_;  // with save_async
  BackgroundSaving background_;
  // Progress that the checkpoint in progress saves, the start of the save, and the time without a
  // step.
  Progress under_way_;
  std::chrono::steady_clock::time_point began_;
  std::chrono::duration<double> waited_{};
};

}  // namespace longspan
