// report_to: wandb, trackio, swanlab, mlflow. A Python process hands the numbers to the service's
// own package. No torch.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/report/training_log.h"
#include "longspan/rollouts/child_process.h"
#include "longspan/settings/output_settings.h"

namespace longspan {

class ServiceLog {
 public:
  /// Starts the Python process, which imports the packages of `services` and begins a run of each.
  /// `settings`: names and values of the configuration, which the run of a service has. Throws
  /// UserError if a package is not installed, or refuses to begin.
  ServiceLog(const OutputSettings& config, std::vector<std::string> services,
             const std::vector<std::pair<std::string, std::string>>& settings);
  /// Ends the runs, and waits for the packages to send the rest; at most for a time.
  ~ServiceLog();
  ServiceLog(const ServiceLog&) = delete;
  ServiceLog& operator=(const ServiceLog&) = delete;

  /// Returns a line for the user about each run of a service that has an address.
  const std::vector<std::string>& addresses() const { return addresses_; }
  /// Sends the entry. Returns a warning for each service that has failed since the last call. A
  /// failed service gets no further entries; training continues.
  std::vector<std::string> add(const LogEntry& entry);

 private:
  std::string next_line();

  std::string python_;
  std::vector<std::string> services_;  // which have not failed
  std::unique_ptr<ChildProcess> process_;
  std::vector<std::string> addresses_;
};

}  // namespace longspan
