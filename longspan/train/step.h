// One optimizer step of a run.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/liveness/run_control.h"
#include "longspan/session/session.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/stages/row.h"
#include "longspan/train/nonfinite.h"
#include "longspan/train/step_schedule.h"

namespace longspan {

/// The result of an optimizer step; the same on every rank.
struct StepResult {
  BatchCounts counts;
  double loss = 0.0;       // the objective's mean over the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  bool interrupted = false;  // abandoned without an update
  bool skipped = false;      // no update, since loss or gradients were not finite
  bool stops = false;        // the last step: a rank was told to save and end
  bool left_out = false;     // not begun: while rows were made, the run was told to save and end
};

class TrainingStep {
 public:
  /// `session` must be prepared. All arguments but `config` must outlive this object.
  TrainingStep(const OptimizationSettings& config, const StepSchedule& schedule, Session& session,
               ExampleSource& source, const RunControl& control);

  /// Runs optimizer step `step` (0-based). `num_skipped`: earlier steps without an update. Throws
  /// UserError on rank 0 and FailedElsewhere on the other ranks. Collective.
  StepResult run(int64_t step, int64_t num_skipped);

 private:
  struct RowsOfStep {
    int64_t step;
    std::vector<Row> rows;
    std::function<BatchCounts()> counts = {};  // empty: the count has not begun
    std::exception_ptr failure = {};           // of the rows, which ends the run in their own step
  };
  RowsOfStep take_rows(int64_t step);
  /// If the rows of this step have pictures, makes the rows of the next step, whose pixels are read
  /// during the computation of this step.
  void read_pictures_ahead(int64_t step, const std::vector<Row>& rows);
  /// Makes the rows of the next step, if that is possible. No-op if they are there.
  void make_next(int64_t step);
  /// Starts the count of the next step's rows, if that is possible. Collective.
  void count_next(int64_t step);
  std::vector<Row> rows_of(const StepPlace& place);
  /// Returns the loss of each row of this data-parallel group, a mean over the row's own labels
  /// (pairs, answers). Collective.
  std::vector<double> own_losses(const std::vector<Row>& rows, const RowLosses& losses,
                                 double total_weight);

  const StepSchedule& schedule_;
  Session& session_;
  ExampleSource& source_;
  const RunControl& control_;
  double max_grad_norm_;
  NonfiniteSteps nonfinite_;
  std::optional<RowsOfStep> next_;  // rows that were made ahead, for the next step
};

}  // namespace longspan
