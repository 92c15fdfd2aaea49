// metrics_file: the numbers of the last log entry, as a text file for Prometheus. No torch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "longspan/report/events.h"

namespace longspan {

/// Writes a file in Prometheus' text format (exposition format 0.0.4), which node_exporter's
/// textfile collector reads. Each number has the prefix longspan_; a rank's have the labels rank
/// and host.
class MetricsFile {
 public:
  explicit MetricsFile(std::string path) : path_(std::move(path)) {}

  /// Replaces the file. Numbers of earlier entries stay until an entry has them again, such as
  /// those of evaluations. Returns an error message for the first failure, otherwise an empty
  /// string; training continues.
  std::string add(const Logged& logged);

 private:
  std::string path_;
  std::map<std::string, double> numbers_;
  std::vector<RankTime> ranks_;
  bool failing_ = false;
};

}  // namespace longspan
