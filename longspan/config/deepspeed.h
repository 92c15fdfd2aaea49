// DeepSpeed's configuration file, as far as it says how memory is used. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;

/// Reads the file that config.deepspeed names into zero_stage, zero_shard_size, offload_optimizer
/// and offload_params. What tunes DeepSpeed's own machinery alone is taken and has no effect;
/// everything else that asks for something is a problem, by name, as is what contradicts the
/// configuration. Returns the problems. Throws UserError where the file cannot be read.
std::vector<std::string> apply_deepspeed(Config& config);

}  // namespace longspan
