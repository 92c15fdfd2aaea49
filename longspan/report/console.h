// Prints the events of a run: lines, and progress between them. No torch.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/report/events.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

/// Shows step, loss, tokens/s and remaining time: on a terminal as a progress bar, otherwise as a
/// plain line from time to time. Lines go to stdout, above the bar; warnings about a rank's own
/// machine to stderr.
class Console final : public EventSink {
 public:
  /// `shows_progress`: false for disable_tqdm.
  explicit Console(bool shows_progress = true);

  void take(const Event& event) override;

 private:
  using Clock = std::chrono::steady_clock;
  void say(const std::string& line);
  void show(const Progress& progress, double loss);

  bool shows_progress_, stdout_is_terminal_;
  std::unique_ptr<ProgressBar> bar_;  // only while steps remain
  Clock::time_point last_shown_{};
};

/// Returns e.g. "12/100 | loss 2.3456  1,234 tokens/s | 0:01:23 left". With shared prompts, also
/// the computed tokens/s.
std::string progress_text(const Progress& progress, double loss);

}  // namespace longspan
