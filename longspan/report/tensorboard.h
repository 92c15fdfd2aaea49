// report_to: tensorboard. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/config/output_settings.h"
#include "longspan/report/training_log.h"
#include "longspan/text/event_file.h"

namespace longspan {

/// Where the event files go: logging_dir, else what OutputSurroundings says, else output_dir/runs;
/// below it run_name, where there is one.
std::string tensorboard_folder(const OutputSettings& config);

/// Tag of a log entry's key, as transformers names it: loss -> train/loss, eval_loss -> eval/loss.
std::string tensorboard_tag(const std::string& key);

class TensorBoardLog {
 public:
  /// `last_step`: the step of the checkpoint that the run goes on from; removes later points.
  /// Negative: a new run; removes what an earlier run with the same output_dir has left in the
  /// folder. Throws UserError.
  TensorBoardLog(const OutputSettings& config, int64_t last_step);

  /// All numbers of the entry but the step, at that step. Returns what went wrong, the first time
  /// that something does: training goes on without.
  std::string add(const LogEntry& entry);

 private:
  EventFile file_;
  bool failing_ = false;
};

}  // namespace longspan
