#include "longspan/report/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

#include "longspan/text/bytes.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

constexpr auto kBetweenLines = std::chrono::seconds(10);  // keeps log files readable

std::string message_of(const Progress& progress, double loss) {
  return progress_message(loss, progress.tokens_per_second(),
                          progress.shares_tokens() ? progress.computed_tokens_per_second()
                                                   : std::numeric_limits<double>::quiet_NaN());
}

std::string line_of(const CheckpointSaved& saved) {
  std::string line = fmt::format("Saved {}", saved.folder);
  if (saved.num_bytes == 0) return line;
  line += fmt::format(": {} in {:.2f} s", name_bytes(saved.num_bytes), saved.seconds);
  if (saved.in_background) {
    line += fmt::format(", of which the steps waited {:.2f} s", saved.waited_seconds);
  }
  return line;
}

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

}  // namespace

Console::Console(bool shows_progress)
    : shows_progress_(shows_progress), stdout_is_terminal_(isatty(STDOUT_FILENO) == 1) {}

void Console::take(const Event& event) {
  std::visit(Overloaded{[&](const Said& said) {
                          if (said.of_any_rank) return print_err("{}\n", said.text);
                          say(said.text);
                        },
                        [&](const Stepped& stepped) { show(stepped.progress, stepped.loss); },
                        [&](const StepsEnded&) { bar_.reset(); },
                        [&](const Logged& logged) { say(console_line(logged.entry)); },
                        [&](const CheckpointSaved& saved) { say(line_of(saved)); },
                        [](const ModelSaved&) {}, [](const MemoryMeasured&) {}},
             event);
}

void Console::say(const std::string& line) {
  // If the bar is on the same terminal, a plain line would be overdrawn.
  if (bar_ && bar_->visible() && stdout_is_terminal_) return bar_->print_line(line);
  print_line(line);
}

void Console::show(const Progress& progress, double loss) {
  if (!shows_progress_) return;
  const bool begins = !bar_;
  if (begins) bar_ = std::make_unique<ProgressBar>(progress.total_steps, progress.step);
  if (bar_->visible()) return bar_->update(progress.step, message_of(progress, loss));
  const Clock::time_point now = Clock::now();
  const bool ends = progress.step == progress.total_steps;
  if (begins || (!ends && now - last_shown_ < kBetweenLines)) return;
  last_shown_ = now;
  say(progress_text(progress, loss));
}

std::string progress_text(const Progress& progress, double loss) {
  return fmt::format("{}/{} | {} | {} left", progress.step, progress.total_steps,
                     message_of(progress, loss), format_duration(progress.remaining_seconds()));
}

}  // namespace longspan
