// One optimizer step: rows, losses, gradients, update.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/liveness/host.h"
#include "longspan/report/averages.h"
#include "longspan/stages/row.h"
#include "longspan/train/expert_balance.h"
#include "longspan/train/nonfinite.h"
#include "longspan/train/row_pass.h"
#include "longspan/train/run_model.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/step_schedule.h"

namespace longspan {

/// The result of an optimizer step; the same on every rank.
struct StepResult {
  double loss = 0.0;       // the objective's mean over the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t num_tokens = 0, num_samples = 0;  // of the global batch, in the data
  int64_t num_computed_tokens = 0;          // a shared prompt counts once
  bool interrupted = false;                 // abandoned without an update
  bool skipped = false;                     // no update, since loss or gradients were not finite
  bool stops = false;                       // the last step: a rank was told to save and end
};

class TrainingStep {
 public:
  /// `model` must have its objective. All arguments but `config` must outlive this object. Throws
  /// as ExpertBalance::make.
  TrainingStep(const OptimizationSettings& config, const StepSchedule& schedule, RunModel& model,
               ExampleSource& source, RunReports& reports, const Host& host);

  /// Runs optimizer step `step` (0-based). `num_skipped`: earlier steps without an update. Throws
  /// UserError on rank 0 and FailedElsewhere on the others. Collective.
  StepResult run(int64_t step, int64_t num_skipped);

  /// Averages to which run() adds, of the objective and of the model's experts.
  Averages& averages() { return averages_; }
  /// Returns their means over all ranks, completed by the objective, in the order of a log line.
  /// Collective.
  NamedMeans means();

 private:
  std::vector<Row> rows_of(const StepPlace& place);
  /// Adds the rows of all data-parallel groups to the counts in `result`. Returns the denominator
  /// of the step's loss. Collective.
  double count(const std::vector<Row>& rows, StepResult& result) const;
  /// Runs forward and backward of the rows. Returns each row's contribution to the loss. In a run
  /// of one process it stops early if the host asks for it. Collective.
  std::vector<at::Tensor> train_on(const std::vector<Row>& rows, int64_t step, double total_weight);
  /// Sums loss, gradients and the hosts' requests over all ranks into `result`. Collective.
  void sum_up(const std::vector<at::Tensor>& contributions, StepResult& result);
  /// Returns the loss of each row of this data-parallel group, a mean over the row's own labels
  /// (pairs, answers). Collective.
  std::vector<double> own_losses(const std::vector<Row>& rows,
                                 const std::vector<at::Tensor>& contributions,
                                 double total_weight) const;

  const StepSchedule& schedule_;
  const ObjectiveContext& context_;
  Objective& objective_;
  ModelUpdate& update_;
  ExampleSource& source_;
  const Host& host_;
  double max_grad_norm_;
  std::unique_ptr<ExpertBalance> balance_;  // null if the model has no experts
  RowPass pass_;
  NonfiniteSteps nonfinite_;
  Averages averages_;
};

}  // namespace longspan
