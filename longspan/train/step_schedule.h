// The steps of a run: how many there are, each one's learning rate, and what comes after which.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/config/method_settings.h"
#include "longspan/config/optimization_settings.h"
#include "longspan/config/output_settings.h"
#include "longspan/plan/step_plan.h"

namespace longspan {

/// What the configuration wants after a step.
struct DueAfterStep {
  bool log = false, evaluate = false, save = false;
  /// The time to try again to save, where the last checkpoint found the disk full.
  bool retry_save = false;
};

class StepSchedule {
 public:
  /// The settings outlive it. `batches_per_epoch`: as StepPlan::make. Throws UserError as that and
  /// steps_of do.
  StepSchedule(const MethodSettings& method, const OptimizationSettings& optimization,
               const OutputSettings& output, std::optional<int64_t> batches_per_epoch);

  const StepPlan& plan() const { return plan_; }
  int64_t num_warmup_steps() const { return num_warmup_steps_; }
  /// Steps from one log line, evaluation and checkpoint to the next; 0: never.
  int64_t logging_steps() const { return logging_steps_; }
  int64_t eval_steps() const { return eval_steps_; }
  int64_t save_steps() const { return save_steps_; }

  /// step: 0-based, as in all that follows.
  double learning_rate(int64_t step) const;
  DueAfterStep due_after(int64_t step) const;
  bool is_last(int64_t step) const { return step + 1 == plan_.total_steps; }
  /// Does the run end with an evaluation, wherever it stands?
  bool evaluates_at_end() const;
  /// Checkpoints that are to come once `steps_done` steps are done.
  int64_t num_saves_after(int64_t steps_done) const;

 private:
  const MethodSettings& method_;
  const OptimizationSettings& optimization_;
  const OutputSettings& output_;
  StepPlan plan_;
  int64_t num_warmup_steps_;
  int64_t logging_steps_, eval_steps_, save_steps_;
};

}  // namespace longspan
