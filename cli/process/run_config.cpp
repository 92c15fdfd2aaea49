#include "cli/process/run_config.h"

#include <algorithm>

#include "cli/process/launcher_environment.h"
#include "cli/process/resources.h"
#include "longspan/config/config.h"

namespace longspan {

Config load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  Config config = load_config(path, overrides);
  config.output.surroundings = surroundings_of_output();
  if (!config.data.preprocessing_num_workers) {
    config.data.preprocessing_num_workers = std::max(1, num_cores());
  }
  return config;
}

}  // namespace longspan
