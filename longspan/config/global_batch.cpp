#include "longspan/config/global_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"

namespace longspan {

Config with_global_batch(Config config, int world_size) {
  if (!config.optimization.global_batch_size) return config;
  const int64_t wanted = *config.optimization.global_batch_size,
                rows = config.optimization.per_device_train_batch_size,
                // A share that does not divide the processes is refused with the plan.
      groups = std::max<int64_t>(1, world_size / config.parallel.sequence_parallel_size);
  if (wanted % (rows * groups) != 0) {
    throw UserError(fmt::format(
        "global_batch_size: {} is no multiple of {} rows, per_device_train_batch_size ({}) x "
        "data-parallel groups ({}); give a multiple",
        wanted, rows * groups, rows, groups));
  }
  config.optimization.gradient_accumulation_steps = wanted / (rows * groups);
  return config;
}

}  // namespace longspan
