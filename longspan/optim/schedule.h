// Learning-rate schedules, equal to transformers'. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// Multiplier of learning_rate at optimizer step `step` (0-based). name: linear | cosine | constant
/// | constant_with_warmup.
double schedule_factor(const std::string& name, int64_t step, int64_t num_warmup_steps,
                       int64_t num_training_steps);

}  // namespace longspan
