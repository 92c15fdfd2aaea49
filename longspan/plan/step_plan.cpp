#include "longspan/plan/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "longspan/base/user_error.h"
#include "longspan/input/numbers.h"

namespace longspan {

int64_t steps_of(double given, int64_t total_steps) {
  return whole_number(given < 1 ? std::ceil(given * static_cast<double>(total_steps)) : given,
                      "steps", 0, kMostCounted);
}

int64_t epochs_of(double num_train_epochs) {
  return whole_number(std::ceil(num_train_epochs), "num_train_epochs", 0, kMostCounted);
}

StepPlan StepPlan::make(std::optional<int64_t> batches_per_epoch, int64_t accumulation,
                        double num_train_epochs, int64_t max_steps) {
  StepPlan plan;
  plan.accumulation = accumulation;
  if (!batches_per_epoch) {
    if (max_steps <= 0) {
      throw UserError("The examples are a stream, which has no epochs. Set max_steps.");
    }
    plan.batches_per_epoch = whole_number(static_cast<double>(max_steps) * accumulation,
                                          "micro-batches of max_steps", 1, kMostCounted);
    plan.steps_per_epoch = plan.total_steps = max_steps;
    return plan;
  }
  plan.batches_per_epoch = *batches_per_epoch;
  plan.steps_per_epoch =
      std::max<int64_t>(1, (plan.batches_per_epoch + accumulation - 1) / accumulation);
  plan.total_steps =
      max_steps > 0
          ? max_steps
          : whole_number(std::ceil(num_train_epochs * static_cast<double>(plan.steps_per_epoch)),
                         fmt::format("steps of num_train_epochs {} with {} each", num_train_epochs,
                                     plan.steps_per_epoch),
                         0, kMostCounted);
  return plan;
}

StepPlace StepPlan::place(int64_t step) const {
  StepPlace place;
  place.epoch = step / steps_per_epoch;
  place.begin_batch = step % steps_per_epoch * accumulation;
  place.end_batch = std::min(place.begin_batch + accumulation, batches_per_epoch);
  place.epochs_done = static_cast<double>(place.epoch) +
                      static_cast<double>(place.end_batch) / static_cast<double>(batches_per_epoch);
  return place;
}

}  // namespace longspan
