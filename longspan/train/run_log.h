// A run's log, and the same entries for TensorBoard, Prometheus and logging services.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/account/disk_model.h"
#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
#include "longspan/report/metrics_file.h"
#include "longspan/report/service_log.h"
#include "longspan/report/tensorboard.h"
#include "longspan/report/training_log.h"
#include "longspan/settings/output_settings.h"
#include "longspan/train/run_start.h"

namespace longspan {

class RunLog final : public EventSink {
 public:
  /// `config` and `events` must outlive this object.
  RunLog(const OutputSettings& config, const RunConstants& constants, Events& events);
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  TrainingLog& training_log() { return log_; }
  /// Writes log entries.
  void take(const Event& event) override;

  /// Starts this run's reports in the folder, after checking that the disk has space for the run.
  /// Returns the disk estimate, on rank 0. `settings`: all keys and values, for logging services.
  /// Collective. Throws as
  /// all_or_none_patiently.
  std::string open(const Group& world, Notices& notices, const DiskFacts& disk,
                   const RunStart& start,
                   const std::vector<std::pair<std::string, std::string>>& settings);

 private:
  const OutputSettings& config_;
  Events& events_;
  std::optional<MetricsFile> metrics_;
  std::optional<TensorBoardLog> tensorboard_;
  std::optional<ServiceLog> services_;
  TrainingLog log_;
};

}  // namespace longspan
