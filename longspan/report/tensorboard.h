// report_to: tensorboard. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "longspan/report/training_log.h"
#include "longspan/settings/output_settings.h"
#include "longspan/text/event_file.h"

namespace longspan {

/// Returns the folder of the event files: logging_dir, else the folder in OutputSurroundings, else
/// output_dir/runs; with run_name as a subfolder if run_name is set.
std::string tensorboard_folder(const OutputSettings& config);

/// Returns the tag of a log entry's key, as in transformers: loss -> train/loss, eval_loss ->
/// eval/loss.
std::string tensorboard_tag(const std::string& key);

class TensorBoardLog {
 public:
  /// `last_step`: the step of the checkpoint that the run resumes from; later points are removed.
  /// Negative: a new run; files of an earlier run with the same output_dir are removed from the
  /// folder. Throws UserError.
  TensorBoardLog(const OutputSettings& config, int64_t last_step);

  /// Writes all numbers of the entry at its step. Returns an error message for the first failure,
  /// otherwise an empty string; training continues.
  std::string add(const LogEntry& entry);

 private:
  EventFile file_;
  bool failing_ = false;
};

}  // namespace longspan
