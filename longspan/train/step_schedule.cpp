#include "longspan/train/step_schedule.h"

#include <stdexcept>
#include <string>

#include "longspan/account/disk_model.h"
#include "longspan/registers/schedule.h"
#include "longspan/settings/choices.h"

namespace longspan {

StepSchedule::StepSchedule(const MethodSettings& method, const OptimizationSettings& optimization,
                           const OutputSettings& output, std::optional<int64_t> batches_per_epoch)
    : method_(method),
      optimization_(optimization),
      output_(output),
      plan_(StepPlan::make(batches_per_epoch, optimization.gradient_accumulation_steps,
                           optimization.num_train_epochs, optimization.max_steps)),
      num_warmup_steps_(
          warmup_steps_of(optimization.warmup_ratio, optimization.warmup_steps, plan_.total_steps)),
      logging_steps_(steps_of(output.logging_steps, plan_.total_steps)),
      eval_steps_(
          steps_of(optimization.eval_steps.value_or(output.logging_steps), plan_.total_steps)),
      save_steps_(steps_of(output.save_steps, plan_.total_steps)) {}

double StepSchedule::learning_rate(int64_t step) const {
  return optimization_.learning_rate * schedule_factor(optimization_.lr_scheduler_type, step,
                                                       num_warmup_steps_, plan_.total_steps);
}

DueAfterStep StepSchedule::due_after(int64_t step) const {
  const int64_t done = step + 1;
  const bool epoch_ends = plan_.ends_epoch(step) || is_last(step);
  const auto is_multiple_of = [done](int64_t interval) {
    return interval > 0 && done % interval == 0;
  };
  const auto is_due = [epoch_ends](const std::string& strategy, bool after_steps) {
    switch (interval_of(strategy)) {
      case Interval::kNever:
        return false;
      case Interval::kSteps:
        return after_steps;
      case Interval::kEpoch:
        return epoch_ends;
    }
    throw std::logic_error("a strategy without an interval");
  };
  return {
      .log = is_due(output_.logging_strategy, is_multiple_of(logging_steps_)) ||
             (output_.logging_first_step && done == 1),
      .evaluate = is_due(optimization_.eval_strategy, is_multiple_of(eval_steps_) || is_last(step)),
      .save = is_due(output_.save_strategy, is_multiple_of(save_steps_)),
      .retry_save = is_multiple_of(logging_steps_)};
}

bool StepSchedule::evaluates_at_end() const {
  return method_.do_eval || interval_of(optimization_.eval_strategy) != Interval::kNever;
}

int64_t StepSchedule::num_saves_after(int64_t steps_done) const {
  return num_saves(interval_of(output_.save_strategy), save_steps_, steps_done, plan_.total_steps,
                   plan_.steps_per_epoch);
}

}  // namespace longspan
