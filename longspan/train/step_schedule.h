// The steps of a run: their number, learning rates, and the actions after each step.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/plan/step_plan.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

/// Actions that the configuration asks for after a step.
struct DueAfterStep {
  bool log = false, evaluate = false, save = false;
  /// It is time to retry a checkpoint that did not fit on the disk.
  bool retry_save = false;
};

class StepSchedule {
 public:
  /// The settings must outlive this object. `batches_per_epoch`: as in StepPlan::make. Throws
  /// UserError as StepPlan::make and steps_of do.
  StepSchedule(const MethodSettings& method, const OptimizationSettings& optimization,
               const OutputSettings& output, std::optional<int64_t> batches_per_epoch);

  const StepPlan& plan() const { return plan_; }
  int64_t num_warmup_steps() const { return num_warmup_steps_; }
  /// Interval of log lines, evaluations and checkpoints in steps; 0: never.
  int64_t logging_steps() const { return logging_steps_; }
  int64_t eval_steps() const { return eval_steps_; }
  int64_t save_steps() const { return save_steps_; }

  /// step: 0-based, here and below.
  double learning_rate(int64_t step) const;
  DueAfterStep due_after(int64_t step) const;
  bool is_last(int64_t step) const { return step + 1 == plan_.total_steps; }
  /// True if the run always ends with an evaluation.
  bool evaluates_at_end() const;
  /// Returns the number of checkpoints after `steps_done` steps.
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
