// The one exception for mistakes that a user can mend.
#pragma once

#include <stdexcept>
#include <string>

namespace longspan {

/// A mistake in what the user gave: a key, a file, a shape, a size. The message says what was
/// given, what the limit is and what to do about it; the program prints it once and exits with
/// status 1, without a stack trace. Anything else that is thrown is a defect of the program.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace longspan
