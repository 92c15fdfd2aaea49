// What a run leaves behind when all its steps are done: the model, and the record of the run.
#pragma once

#include <optional>
#include <string>

#include "longspan/config/output_settings.h"
#include "longspan/report/training_log.h"
#include "longspan/saving/training_state.h"
#include "longspan/train/run_model.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_saving.h"
#include "longspan/train/workers.h"

namespace longspan {

/// What the record holds beside the log.
struct RunRecord {
  Progress progress;
  TrainingResult training;
  std::optional<EvaluationResult> evaluation;  // the last one, where the run ends with one
  SentBytes sent;
};

class RunResults {
 public:
  /// All outlive it.
  RunResults(const OutputSettings& config, Workers& workers, const RunModel& model,
             RunSaving& saving, RunReports& reports);

  /// What the run has trained, for the log and the record.
  TrainingResult summed_up(const RunTotals& totals) const;
  /// Saves the model, in fallback_output_dir where output_dir's disk is full, and waits for room.
  /// False: it was interrupted while it waited. Collective. Throws as all_or_none.
  bool save_model(const RunTotals& totals);
  /// The same of logs and results. Call it after save_model, whose folder it prefers.
  bool save_record(const RunRecord& record);
  /// Draws the curves and shows what the ranks have sent. On rank 0.
  void show(const SentBytes& sent);

  /// Where the model is after save_model: output_dir, or the run's folder in fallback_output_dir.
  /// Empty where it was not saved.
  const std::string& model_in() const { return model_in_; }
  /// Where logs and results are: the same folder, or the other one where that has no room.
  const std::string& record_in() const { return record_in_; }

 private:
  void write_record(const std::string& folder, const RunRecord& record);

  const OutputSettings& config_;
  Workers& workers_;
  const RunModel& model_;
  RunSaving& saving_;
  RunReports& reports_;
  TrainingLog& log_;
  std::string model_in_, record_in_;
};

}  // namespace longspan
