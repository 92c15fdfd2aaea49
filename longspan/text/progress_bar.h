// The progress bar of a run. No torch. (Backed by the `indicatif` crate, see rust/.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace longspan {

/// A bar on stderr with steps, loss, tokens/s, elapsed and remaining time. If stderr is not a
/// terminal, nothing is drawn and visible() is false; print plain lines instead. Not thread-safe.
class ProgressBar {
 public:
  /// `first_step`: steps that are already done (in a resumed run), ignored for the remaining time.
  explicit ProgressBar(int64_t total_steps, int64_t first_step = 0);
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;
  /// Leaves the bar on the screen.
  ~ProgressBar();

  bool visible() const;
  /// `step`: steps done; `message`: text after the steps (progress_message).
  void update(int64_t step, const std::string& message);
  /// Prints a line to stderr above the bar (also if the bar is not drawn).
  void print_line(std::string_view line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the text after the steps: "loss 1.2345  12,345 tokens/s (10,234 computed)". NaN values
/// are left out.
std::string progress_message(double loss, double tokens_per_second,
                             double computed_tokens_per_second);

/// Formats 1234567 as "1,234,567".
std::string with_commas(int64_t number);

}  // namespace longspan
