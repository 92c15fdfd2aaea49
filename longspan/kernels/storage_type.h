// From a tensor's dtype to the C++ type that its numbers are stored in, for loops over them.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <type_traits>

namespace longspan {

/// Calls f(Storage{}), Storage being float, double or c10::BFloat16.
template <typename F>
void with_type(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(c10::BFloat16{});
    default:
      TORCH_CHECK(false, "activations are fp32, bf16 or fp64, not ", dtype);
  }
}

/// What is computed in on numbers that are stored so.
template <typename S>
using Arithmetic = std::conditional_t<std::is_same_v<S, double>, double, float>;
/// The same, of dtypes: fp64 for fp64, and fp32 for all else.
inline at::ScalarType arithmetic_dtype(at::ScalarType stored) {
  return stored == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace longspan
