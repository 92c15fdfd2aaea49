// One optimizer step: rows, losses, gradients, update.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "longspan/data/example_source.h"
#include "longspan/plan/step_plan.h"
#include "longspan/report/averages.h"
#include "longspan/stages/row.h"
#include "longspan/train/expert_balance.h"
#include "longspan/train/model_update.h"
#include "longspan/train/training_job.h"

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
  explicit TrainingStep(const TrainingJob& job);

  /// Optimizer step number `step` (0-based). `num_skipped`: steps so far whose update was left out.
  /// Throws UserError on rank 0 and FailedElsewhere on the others. Collective.
  StepResult run(int64_t step, int64_t num_skipped);

  const StepPlan& plan() const { return plan_; }
  int64_t num_warmup_steps() const { return num_warmup_steps_; }
  ModelUpdate& update() { return update_; }
  /// The averages that run() adds to, of the objective and of the model's experts.
  Averages& averages() { return averages_; }
  /// The names of these averages, in the order of a log line.
  std::vector<std::string> names_of_averages() const;

 private:
  std::vector<Row> rows_of(const StepPlace& place);
  /// Finds out what must be known of all rows before the first one's loss. Collective.
  void look_at(const std::vector<Row>& rows, int64_t step);
  /// A seed of its own for each micro-batch, whatever the number of processes that share it.
  uint64_t dropout_seed(int64_t step, size_t row_number) const;
  /// For a loss or a gradient norm that is not finite. Says where it comes from, and stops the run
  /// or leaves out the step's update, as on_nonfinite says. `own_losses`: one for each row of this
  /// data-parallel group, a mean over the row's own labels (pairs, answers). Collective.
  void leave_out(StepResult& result, int64_t step, const std::vector<Row>& rows,
                 const std::vector<double>& own_losses, int64_t num_skipped);
  /// Names the rows whose loss is not finite; or the parameters whose gradient is not, and the rows
  /// with the largest losses. Collective.
  std::string source_of_nonfinite(const std::vector<Row>& rows,
                                  const std::vector<double>& own_losses, bool in_loss) const;

  const ObjectiveContext& context_;
  const Config& config_;
  const Mesh& mesh_;
  const Group& world_;
  Decoder& model_;
  at::Device device_;
  Objective& objective_;
  ExampleSource& source_;
  const Host& host_;
  AttentionTraffic& traffic_;
  ExpertTraffic& expert_traffic_;
  Console& console_;
  StepPlan plan_;
  int64_t num_warmup_steps_;
  ModelUpdate update_;
  std::unique_ptr<ExpertBalance> balance_;  // null: the model has no experts
  Averages averages_;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace longspan
