// The key global_batch_size. No torch.
#pragma once

namespace longspan {

struct Config;

/// Returns the configuration with the gradient_accumulation_steps that make global_batch_size rows
/// a step on `world_size` processes; unchanged without global_batch_size. Throws UserError if no
/// whole number of micro-batches does.
Config with_global_batch(Config config, int world_size);

}  // namespace longspan
