// Maps a tensor's dtype to the C++ type of its numbers.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <type_traits>

namespace longspan {

/// Calls f(Storage{}), where Storage is float, double or c10::BFloat16.
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

/// The type of arithmetic on numbers stored as S.
template <typename S>
using Arithmetic = std::conditional_t<std::is_same_v<S, double>, double, float>;
/// The same for dtypes: fp64 for fp64, else fp32.
inline at::ScalarType arithmetic_dtype(at::ScalarType stored) {
  return stored == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace longspan
