// Prints log lines and progress while a run goes on. No torch.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/report/training_log.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

/// Shows the step, the loss, tokens/s and the time left: on a terminal as a bar that is drawn over
/// itself, otherwise as a plain line from time to time. A silent console (ranks other than 0)
/// prints nothing.
class Console {
 public:
  /// `shows_progress`: false for disable_tqdm.
  explicit Console(bool silent, bool shows_progress = true);

  /// Prints a line on stdout; the bar moves down.
  void say(const std::string& line);
  /// Call it after each step, and once before the first. A loss of NaN is left out.
  void show(const Progress& progress, double loss);
  /// Call it when no more steps come.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool silent_, shows_progress_, stdout_is_terminal_;
  std::unique_ptr<ProgressBar> bar_;  // while there are steps to come
  Clock::time_point last_shown_{};
};

/// "12/100 | loss 2.3456  1,234 tokens/s | 0:01:23 left"; where prompts are shared, with the
/// tokens/s that are computed beside those of the data.
std::string progress_text(const Progress& progress, double loss);

}  // namespace longspan
