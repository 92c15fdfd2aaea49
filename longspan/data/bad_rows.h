// Rows of a data set that cannot be used: counted, shown, left out. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/config/choices.h"
#include "longspan/config/user_error.h"

namespace longspan {

/// What is wrong with one row, its place first; other rows may be fine.
class RowError : public UserError {
 public:
  using UserError::UserError;
};

/// The bad rows of a file or of a data set.
class BadRows {
 public:
  /// The caller adds them in the order of the rows.
  void add(const std::string& reason);
  int64_t count() const { return count_; }

  /// Does what the key on_bad_row says. kStop: throws UserError, which counts the bad rows among
  /// `num_rows` rows of `what` and shows the first five. kSkip: returns that text as a sentence (""
  /// when there are none), and throws when no row is left.
  std::string settle(OnBadRow on_bad_row, const std::string& what, int64_t num_rows) const;

 private:
  int64_t count_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace longspan
