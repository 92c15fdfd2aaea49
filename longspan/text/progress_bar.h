// The progress bar of a run. No torch. (Backed by the `indicatif` crate, see rust/.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace longspan {

/// A bar on stderr with steps, loss, tokens/s, time gone and time left. Where stderr is not a
/// terminal it draws nothing: ask `visible` and print plain lines then. Not for several threads.
class ProgressBar {
 public:
  /// `first_step` steps are done already (a resumed run); they do not count for the time left.
  explicit ProgressBar(int64_t total_steps, int64_t first_step = 0);
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;
  /// Leaves the bar on the screen as it stands.
  ~ProgressBar();

  bool visible() const;
  /// `step` steps are done; `message` stands beside them (progress_message).
  void update(int64_t step, const std::string& message);
  /// Prints a line to stderr above the bar (also when the bar is not drawn).
  void print_line(std::string_view line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the bar says beside the steps: "loss 1.2345  12,345 tokens/s (10,234 computed)". NaN leaves
/// a number out.
std::string progress_message(double loss, double tokens_per_second,
                             double computed_tokens_per_second);

/// 1234567 -> "1,234,567".
std::string with_commas(int64_t number);

}  // namespace longspan
