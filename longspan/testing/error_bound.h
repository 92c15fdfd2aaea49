// Exact numbers with bounds of the distance of the same numbers by kernels, which follow from
// counted roundings: a running error analysis (N. Higham, Accuracy and Stability of Numerical
// Algorithms, chapter 3), beside fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace longspan::testing {

/// Half the distance of 1 to the next number.
inline constexpr double kFp32Rounding = 0x1p-24, kBf16Rounding = 0x1p-8;

/// |computed - exact| <= error, number by number. Both fp64.
struct Bounded {
  at::Tensor exact, error;

  /// Returns the largest size of what is computed.
  at::Tensor largest() const { return exact.abs() + error; }
  /// A function that moves, picks, repeats or adds up numbers without a rounding.
  template <typename F>
  Bounded by(const F& function) const {
    return {function(exact), function(error)};
  }
  /// Stored with one more rounding; 0: without.
  Bounded stored(double rounding) const { return {exact, error + rounding * largest()}; }
};

/// Numbers with an error of so many fp32 roundings of their size; 0: inputs.
Bounded with_roundings(const at::Tensor& exact, double roundings = 0);
Bounded joined(const std::vector<Bounded>& parts, int64_t dim);

/// In fp32: an operation has one rounding, and a sum of n products n, in any order.
Bounded operator+(const Bounded& x, const Bounded& y);
Bounded operator-(const Bounded& x, const Bounded& y);
Bounded operator*(const Bounded& x, const Bounded& y);
Bounded operator-(const Bounded& x);
Bounded sum(const Bounded& x, int64_t dim, bool keepdim = false);
Bounded matmul(const Bounded& x, const Bounded& y);
/// Returns (1 + lower)^-1, solved row by row. `lower`: below the diagonal.
Bounded inverse_of_triangle(const Bounded& lower);

}  // namespace longspan::testing
