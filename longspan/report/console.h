// Prints log lines and progress during a run. No torch.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/report/training_log.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

/// Shows step, loss, tokens/s and remaining time: on a terminal as a progress bar, otherwise as a
/// plain line from time to time. A silent console (on ranks other than 0) prints nothing.
class Console {
 public:
  /// `shows_progress`: false for disable_tqdm.
  explicit Console(bool silent, bool shows_progress = true);

  /// Prints a line on stdout, above the bar.
  void say(const std::string& line);
  /// Call after each step, and once before the first. A NaN loss is left out.
  void show(const Progress& progress, double loss);
  /// Call after the last step.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool silent_, shows_progress_, stdout_is_terminal_;
  std::unique_ptr<ProgressBar> bar_;  // only while steps remain
  Clock::time_point last_shown_{};
};

/// Returns e.g. "12/100 | loss 2.3456  1,234 tokens/s | 0:01:23 left". With shared prompts, also
/// the computed tokens/s.
std::string progress_text(const Progress& progress, double loss);

}  // namespace longspan
