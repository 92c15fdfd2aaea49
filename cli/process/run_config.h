#pragma once

#include <string>
#include <vector>

namespace longspan {

struct Config;

/// Loads the configuration of a run (see load_config). Sets the values that depend on this process:
/// the output settings from the launcher's environment, and preprocessing_num_workers, by default
/// the number of cores. Throws UserError.
Config load_run_config(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace longspan
