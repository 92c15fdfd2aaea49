// The checkpoints of a run: when the disk is full, too.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/config/output_settings.h"
#include "longspan/saving/resume.h"
#include "longspan/train/run_model.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_saving.h"
#include "longspan/train/run_state.h"
#include "longspan/train/workers.h"

namespace longspan {

/// Members that are collective throw as all_or_none.
class RunCheckpoints {
 public:
  /// All outlive it.
  RunCheckpoints(const OutputSettings& config, Workers& workers, const RunModel& model,
                 RunSaving& saving, RunState& state, RunReports& reports);

  /// Takes weights, optimizer, log and counts from a checkpoint, for a run of `total_steps`.
  /// Returns what it had counted. Throws UserError. Collective.
  RunTotals resume(const ResumePoint& from, int64_t total_steps);

  /// Saves checkpoint-N of the steps so far. On a full disk it saves none, says so, and training
  /// goes on; what is on the disk is whole. Collective.
  void save(const RunTotals& totals);
  /// Has the disk room for the checkpoint that it was too full for? False where there is no such
  /// checkpoint. Collective.
  bool can_catch_up(const RunTotals& totals) const;
  /// Saves a checkpoint of the steps so far before the run ends, unless there is one: waits for
  /// room. False: it was interrupted while it waited. Collective.
  bool save_last(const RunTotals& totals);
  /// Can a run go on from them? Else they hold the model alone.
  bool hold_state() const { return !config_.save_only_model; }

 private:
  /// Saves the checkpoint in this folder. Collective.
  void save_into(const std::string& output_dir, const RunTotals& totals);

  const OutputSettings& config_;
  Workers& workers_;
  const RunModel& model_;
  RunSaving& saving_;
  RunState& state_;
  RunReports& reports_;
  int64_t last_saved_step_ = -1;
  bool is_owed_ = false;  // the disk was too full for the last one
};

}  // namespace longspan
