// Learning-rate schedules, equal to transformers'. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// What lr_scheduler_type may be.
std::vector<std::string_view> names_of_schedules();

/// Does the schedule of this name begin with a warmup? Throws UserError for another name.
bool warms_up(const std::string& name);

/// Multiplier of learning_rate at optimizer step `step` (0-based), by the schedule of this name.
/// Throws UserError for another name.
double schedule_factor(const std::string& name, int64_t step, int64_t num_warmup_steps,
                       int64_t num_training_steps);

/// warmup_steps where it is given (> 0; below 1 it is a share of num_training_steps, rounded up),
/// else ceil(warmup_ratio * num_training_steps), as transformers has it.
int64_t warmup_steps_of(double warmup_ratio, double warmup_steps, int64_t num_training_steps);

}  // namespace longspan
