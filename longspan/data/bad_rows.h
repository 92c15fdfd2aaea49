// Counts and reports unusable rows of a data set. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/settings/choices.h"

namespace longspan {

/// An error in one row of a data set. The message begins with the row's place. Other rows may be
/// usable.
class RowError : public UserError {
 public:
  using UserError::UserError;
};

/// No token of the row is trained.
class NothingTrained : public RowError {
 public:
  using RowError::RowError;
};

/// The bad (unusable) rows of a file or of a data set.
class BadRows {
 public:
  /// Adds a bad row. Must be called in the order of the rows.
  void add(const std::string& reason);
  int64_t count() const { return count_; }

  /// Applies the key on_bad_row. kStop: throws UserError if there are bad rows; the message has the
  /// count of bad rows among `num_rows` rows of `what`, and the first five bad rows. kSkip: returns
  /// the same text as a sentence ("" if there are no bad rows), and throws UserError if no usable
  /// row is left.
  std::string settle(OnBadRow on_bad_row, const std::string& what, int64_t num_rows) const;

 private:
  int64_t count_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace longspan
