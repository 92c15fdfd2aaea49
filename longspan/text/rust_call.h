// Calls into the Rust archive: converts a status to exceptions, and the archive's strings to
// std::string. Only for .cpp files of this folder, of pictures/ and of rollouts/.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan_rs.h"

namespace longspan {

inline LsrView rust_view(std::string_view text) { return {text.data(), text.size()}; }

/// Copies a string of the archive and frees the original.
inline std::string take_rust_string(LsrString text) {
  std::string copy(text.data, text.size);
  lsr_string_free(text);
  return copy;
}

/// Calls function(args..., &error). Throws UserError with the archive's message if the user can fix
/// the error, otherwise std::logic_error.
template <typename Function, typename... Args>
void rust_call(Function function, Args&&... args) {
  LsrString error{nullptr, 0};
  const LsrStatus status = function(std::forward<Args>(args)..., &error);
  if (status == LSR_OK) return;
  const std::string message = take_rust_string(error);
  if (status == LSR_USER_ERROR) throw UserError(message);
  throw std::logic_error("Defect in the text archive: " + message);
}

}  // namespace longspan
