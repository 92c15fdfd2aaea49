// DeepSpeed's configuration file: its keys on the use of memory. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;

/// Reads the file of config.deepspeed into zero_stage, zero_shard_size, offload_optimizer and
/// offload_params. Accepts and ignores keys that tune only DeepSpeed's own machinery. Returns the
/// problems: any other key with a value that has an effect, and keys that contradict the
/// configuration. Throws UserError where the file cannot be read.
std::vector<std::string> apply_deepspeed(Config& config);

}  // namespace longspan
