// Counts and reports unusable rows of a data set. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/settings/choices.h"

namespace longspan {

/// What is wrong with one row. The message begins with the row's place. Other rows may be fine.
class RowError : public UserError {
 public:
  using UserError::UserError;
};

/// The bad rows of a file or of a data set.
class BadRows {
 public:
  /// Adds a bad row. Call in the order of the rows.
  void add(const std::string& reason);
  int64_t count() const { return count_; }

  /// Applies the key on_bad_row. kStop: throws UserError, with the count of bad rows among
  /// `num_rows` rows of `what` and the first five. kSkip: returns that text as a sentence ("" where
  /// there are none), and throws UserError where no row is left.
  std::string settle(OnBadRow on_bad_row, const std::string& what, int64_t num_rows) const;

 private:
  int64_t count_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace longspan
