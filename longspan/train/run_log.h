// A run's log, and who is told of its entries.
#pragma once

#include <optional>
#include <string>

#include "longspan/comm/group.h"
#include "longspan/config/config.h"
#include "longspan/report/console.h"
#include "longspan/report/tensorboard.h"
#include "longspan/report/training_log.h"
#include "longspan/train/run_start.h"
#include "longspan/train/trainer.h"

namespace longspan {

class RunLog {
 public:
  /// Both outlive it.
  RunLog(const Config& config, Console& console);
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  TrainingLog& training_log() { return log_; }

  /// Makes the folder's reports this run's, once there is room for what `trainer` writes. Returns
  /// the account of the disk, on rank 0. Collective. Throws as all_or_none.
  std::string open(const Group& world, const Trainer& trainer, const RunStart& start);

 private:
  const Config& config_;
  Console& console_;
  std::optional<TensorBoardLog> tensorboard_;
  TrainingLog log_;
};

}  // namespace longspan
