#include "longspan/text/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "longspan/text/print.h"
#include "longspan/text/rust_call.h"
#include "longspan/text/shown.h"

namespace longspan {

struct ProgressBar::Impl {
  LsrProgress* bar = nullptr;  // null if nothing is drawn
  ~Impl() { lsr_progress_free(bar); }
};

ProgressBar::ProgressBar(int64_t total_steps, int64_t first_step)
    : impl_(std::make_unique<Impl>()) {
  if (isatty(STDERR_FILENO)) {
    impl_->bar =
        lsr_progress_new(static_cast<uint64_t>(total_steps), static_cast<uint64_t>(first_step));
  }
}

ProgressBar::ProgressBar(ProgressBar&&) noexcept = default;
ProgressBar& ProgressBar::operator=(ProgressBar&&) noexcept = default;
ProgressBar::~ProgressBar() = default;

bool ProgressBar::visible() const { return impl_->bar != nullptr; }

std::string progress_message(double loss, double tokens_per_second,
                             double computed_tokens_per_second) {
  std::string message;
  if (!std::isnan(loss)) message = fmt::format("loss {:.4f}", loss);
  if (!std::isnan(tokens_per_second)) {
    message += fmt::format("{}{} tokens/s", message.empty() ? "" : "  ",
                           with_commas(std::llround(tokens_per_second)));
  }
  if (!std::isnan(computed_tokens_per_second)) {
    message += fmt::format(" ({} computed)", with_commas(std::llround(computed_tokens_per_second)));
  }
  return message;
}

std::string with_commas(int64_t number) {
  std::string digits = fmt::format("{}", number);
  const int64_t first = digits[0] == '-' ? 1 : 0;
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return digits;
}

void ProgressBar::update(int64_t step, const std::string& message) {
  if (!impl_->bar) return;
  lsr_progress_update(impl_->bar, static_cast<uint64_t>(step), rust_view(shown(message)));
}

void ProgressBar::print_line(std::string_view line) {
  if (impl_->bar) {
    lsr_progress_print(impl_->bar, rust_view(shown(line)));
  } else {
    print_err("{}\n", line);
  }
}

}  // namespace longspan
