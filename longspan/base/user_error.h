// The exception for mistakes that a user can correct.
#pragma once

#include <stdexcept>
#include <string>

namespace longspan {

/// A mistake in the user's input: a key, a file, a shape, a size. The message states the given
/// value, the limit and the remedy. The program prints the message once and exits with status 1,
/// without a stack trace. Any other exception is a defect of the program.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace longspan
