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

/// What one optimizer step did. The same on every rank.
struct StepResult {
  double loss = 0.0;       // the objective's mean over the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t num_tokens = 0, num_samples = 0;  // of the global batch, as the data holds it
  int64_t num_computed_tokens = 0;          // a shared prompt counts once
  bool interrupted = false;                 // abandoned; nothing was updated
  bool skipped = false;                     // loss or gradients were not finite: no update
  bool stops = false;                       // the last one: a rank was told to save and end
};

class TrainingStep {
 public:
  /// `model` has its objective. All but `config` outlive it. Throws as ExpertBalance::make.
  TrainingStep(const OptimizationSettings& config, const StepSchedule& schedule, RunModel& model,
               ExampleSource& source, RunReports& reports, const Host& host);

  /// Optimizer step number `step` (0-based). `num_skipped`: steps so far whose update was left out.
  /// Throws UserError on rank 0 and FailedElsewhere on the others. Collective.
  StepResult run(int64_t step, int64_t num_skipped);

  /// The averages that run() adds to, of the objective and of the model's experts.
  Averages& averages() { return averages_; }
  /// Their means over all ranks, and what the objective makes of them, in the order of a log line.
  /// Collective.
  NamedMeans means();

 private:
  std::vector<Row> rows_of(const StepPlace& place);
  /// Counts the rows of all data-parallel groups into `result`. Returns the denominator of the
  /// step's loss. Collective.
  double count(const std::vector<Row>& rows, StepResult& result) const;
  /// The contribution of each row to the loss, whose gradients are then there. Leaves out the rows
  /// after which a run of one process was interrupted. Collective.
  std::vector<at::Tensor> train_on(const std::vector<Row>& rows, int64_t step, double total_weight);
  /// Sums loss, gradients and what the ranks' hosts ask for over all ranks into `result`.
  /// Collective.
  void sum_up(const std::vector<at::Tensor>& contributions, StepResult& result);
  /// The loss of each row of this data-parallel group, a mean over the row's own labels (pairs,
  /// answers). Collective.
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
  std::unique_ptr<ExpertBalance> balance_;  // null: the model has no experts
  RowPass pass_;
  NonfiniteSteps nonfinite_;
  Averages averages_;
};

}  // namespace longspan
