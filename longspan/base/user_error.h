// The exception for mistakes that a user can correct.
#pragma once

#include <stdexcept>
#include <string>

namespace longspan {

/// A mistake in the user's input: a key, a file, a shape, a size. The message says what was given,
/// what the limit is and what to do. The program prints it once and exits with status 1, without a
/// stack trace. Any other exception is a defect of the program.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace longspan
