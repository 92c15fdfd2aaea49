// A run's log, and TensorBoard files with the same entries.
#pragma once

#include <optional>
#include <string>

#include "longspan/account/disk_model.h"
#include "longspan/comm/group.h"
#include "longspan/report/console.h"
#include "longspan/report/events.h"
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
  /// Returns the disk estimate, on rank 0. Collective. Throws as all_or_none.
  std::string open(const Group& world, const DiskFacts& disk, const RunStart& start);

 private:
  const OutputSettings& config_;
  Events& events_;
  std::optional<TensorBoardLog> tensorboard_;
  TrainingLog log_;
};

}  // namespace longspan
