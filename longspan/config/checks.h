// What keys demand of each other. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;

/// Everything that is wrong with a configuration whose keys are well typed and in range: missing
/// keys, keys that exclude each other. A line for each, with the remedy; empty when all is well.
std::vector<std::string> check_config(const Config& config);

/// The same for `longspan export`.
std::vector<std::string> check_export_config(const Config& config);

}  // namespace longspan
