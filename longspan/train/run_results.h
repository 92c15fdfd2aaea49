// Results of a run after its last step: the model, and the record of the run.
#pragma once

#include <optional>
#include <string>

#include "longspan/report/row_traffic.h"
#include "longspan/report/training_log.h"
#include "longspan/saving/training_state.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/settings/output_settings.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_saving.h"

namespace longspan {

/// Contents of the record besides the log.
struct RunRecord {
  Progress progress;
  TrainingResult training;
  std::optional<EvaluationResult> evaluation;  // evaluation at the end of the run; nullopt: none
  SentBytes sent;
};

class RunResults {
 public:
  /// All arguments must outlive this object.
  RunResults(const OutputSettings& config, Workers& workers, const Session& model,
             RunSaving& saving, RunReports& reports);

  /// Returns the totals of training, for the log and the record.
  TrainingResult summed_up(const RunTotals& totals) const;
  /// Saves the model; if output_dir's disk is full, into fallback_output_dir, and waits for space.
  /// Returns false if the wait was interrupted. Collective. Throws as all_or_none.
  bool save_model(const RunTotals& totals);
  /// Saves logs and results like save_model(), then sends the event ModelSaved. Tries the model's
  /// folder first, so call save_record() after save_model().
  bool save_record(const RunRecord& record);

  /// Returns the model's folder after save_model(): output_dir, or the run's folder in
  /// fallback_output_dir; empty if the model was not saved.
  const std::string& model_in() const { return model_in_; }
  /// Returns the folder of logs and results: the model's folder, or the other folder if the model's
  /// folder has no space.
  const std::string& record_in() const { return record_in_; }

 private:
  void write_record(const std::string& folder, const RunRecord& record);

  const OutputSettings& config_;
  Workers& workers_;
  const Session& model_;
  RunSaving& saving_;
  RunReports& reports_;
  TrainingLog& log_;
  std::string model_in_, record_in_;
};

}  // namespace longspan
