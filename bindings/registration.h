// Operators of the Python package, in torch's namespace `longspan`. Python finds them as
// torch.ops.longspan.NAME once the shared object is loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <utility>

namespace longspan {

class CommunicationError;

/// Rethrows the current exception as a type that torch converts for Python: UserError and
/// FailedElsewhere become ValueError, CommunicationError and LostRanks become
/// torch.distributed.DistError.
[[noreturn]] void throw_for_python();

/// Calls `function`, and rethrows its exceptions for Python.
template <typename Function>
auto for_python(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception&) {
    throw_for_python();
  }
}

/// Raises longspan.CommunicationError of Python in a backward of autograd; elsewhere returns.
/// Autograd passes Python's own exceptions to the caller in Python, and makes others a
/// RuntimeError.
void raise_in_backward(const CommunicationError& error);

}  // namespace longspan
