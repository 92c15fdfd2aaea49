// Operators of the Python package, in torch's namespace `longspan`. Python finds them as
// torch.ops.longspan.NAME once the shared object is loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <utility>

namespace longspan {

/// Throws the exception that is in flight, in the kind that torch turns into an exception of
/// Python: UserError and FailedElsewhere as ValueError, CommunicationError and LostRanks as
/// torch.distributed.DistError.
[[noreturn]] void throw_for_python();

/// Calls `function`, with exceptions for Python.
template <typename Function>
auto for_python(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception&) {
    throw_for_python();
  }
}

}  // namespace longspan
