#include "longspan/data/bad_rows.h"

#include <fmt/format.h>

namespace longspan {

namespace {

constexpr size_t kShown = 5;

/// Removes the proposed lines, and the sentence that introduces them.
std::string without_proposal(const std::string& reason) {
  const size_t end = reason.find('\n');
  if (end == std::string::npos) return reason;
  const size_t sentence = reason.rfind(". ", end);
  return reason.substr(0, sentence == std::string::npos ? end : sentence + 1);
}

}  // namespace

void BadRows::add(const std::string& reason) {
  ++count_;
  if (shown_.size() == kShown) return;
  // Only the first row shows its proposal (an entry for dataset_info.json).
  shown_.push_back(shown_.empty() ? reason : without_proposal(reason));
}

std::string BadRows::settle(OnBadRow on_bad_row, const std::string& what, int64_t num_rows) const {
  if (count_ == 0) return "";
  std::string rows;
  for (const std::string& reason : shown_) rows += "\n  " + reason;
  if (const int64_t more = count_ - std::ssize(shown_); more > 0) {
    rows += fmt::format("\n  and {} more", more);
  }
  const std::string counted =
      fmt::format("{} of {} row{}", count_, num_rows, num_rows == 1 ? "" : "s");
  if (on_bad_row == OnBadRow::kStop) {
    throw UserError(
        fmt::format("{}: {} cannot be used:{}\nCorrect {}, or set on_bad_row: skip to leave {} "
                    "out.",
                    what, counted, rows, count_ == 1 ? "it" : "them", count_ == 1 ? "it" : "them"));
  }
  if (count_ == num_rows) {
    const std::string none = num_rows == 1
                                 ? "its only row cannot be used"
                                 : fmt::format("none of the {} rows can be used", num_rows);
    throw UserError(fmt::format("{}: {}:{}", what, none, rows));
  }
  return fmt::format("{}: {} left out, which cannot be used:{}", what, counted, rows);
}

}  // namespace longspan
