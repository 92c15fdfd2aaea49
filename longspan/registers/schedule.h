// Learning-rate schedules, equal to transformers'. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Returns the values of lr_scheduler_type.
std::vector<std::string_view> names_of_schedules();

/// True if the schedule begins with a warmup. Throws UserError for an unknown name.
bool warms_up(const std::string& name);

/// Returns the multiplier of learning_rate at optimizer step `step` (0-based). Throws UserError for
/// an unknown name.
double schedule_factor(const std::string& name, int64_t step, int64_t num_warmup_steps,
                       int64_t num_training_steps);

/// Returns the number of warmup steps, as in transformers. For warmup_steps >= 1: warmup_steps. For
/// warmup_steps between 0 and 1: ceil(warmup_steps * num_training_steps). Otherwise:
/// ceil(warmup_ratio * num_training_steps).
int64_t warmup_steps_of(double warmup_ratio, double warmup_steps, int64_t num_training_steps);

}  // namespace longspan
