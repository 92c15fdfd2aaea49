#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;

/// Loads the configuration of a run (see load_config), with the values that depend on this process:
/// the launcher's part of the output, and preprocessing_num_workers, by default the number of
/// cores. Throws UserError.
Config load_run_config(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace longspan
