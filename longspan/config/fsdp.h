// The key fsdp: transformers' words for sharding. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;

/// Sets zero_stage and offloading as the words of the key fsdp say. Returns what is wrong with the
/// words.
std::vector<std::string> apply_fsdp(Config& config);

}  // namespace longspan
