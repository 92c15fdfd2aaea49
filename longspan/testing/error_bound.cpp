#include "longspan/testing/error_bound.h"

#include <ATen/ATen.h>

namespace longspan::testing {
namespace {

/// n roundings, one after the other.
double roundings(int64_t n) {
  const double all = static_cast<double>(n) * kFp32Rounding;
  return all / (1 - all);
}

}  // namespace

Bounded with_roundings(const at::Tensor& exact, double roundings) {
  return {exact, exact.abs() * (roundings * kFp32Rounding)};
}

Bounded joined(const std::vector<Bounded>& parts, int64_t dim) {
  std::vector<at::Tensor> exact, error;
  for (const Bounded& part : parts) {
    exact.push_back(part.exact);
    error.push_back(part.error);
  }
  return {at::cat(exact, dim), at::cat(error, dim)};
}

Bounded operator+(const Bounded& x, const Bounded& y) {
  return Bounded{x.exact + y.exact, x.error + y.error}.stored(kFp32Rounding);
}

Bounded operator-(const Bounded& x) { return {-x.exact, x.error}; }
Bounded operator-(const Bounded& x, const Bounded& y) { return x + (-y); }

Bounded operator*(const Bounded& x, const Bounded& y) {
  const at::Tensor error = x.largest() * y.error + x.error * y.exact.abs();
  return Bounded{x.exact * y.exact, error}.stored(kFp32Rounding);
}

Bounded sum(const Bounded& x, int64_t dim, bool keepdim) {
  return {x.exact.sum(dim, keepdim),
          x.error.sum(dim, keepdim) + roundings(x.exact.size(dim)) * x.largest().sum(dim, keepdim)};
}

Bounded matmul(const Bounded& x, const Bounded& y) {
  return {at::matmul(x.exact, y.exact),
          at::matmul(x.largest(), y.error + roundings(x.exact.size(-1)) * y.largest()) +
              at::matmul(x.error, y.exact.abs())};
}

Bounded inverse_of_triangle(const Bounded& lower) {
  const int64_t C = lower.exact.size(-1);
  const at::Tensor one = at::eye(C, lower.exact.options()).expand(lower.exact.sizes()),
                   inverse = at::linalg_solve_triangular(lower.exact + one, one, /*upper=*/false);
  // The computed T has (1 + lower) T = 1 + R with |R| <= (lower's error + C + 1 roundings of 1 +
  // lower) |T|, number by number, so |T - inverse| <= W |T| for W = |inverse| (..), and
  // |T - inverse| <= (1 - W)^-1 W |inverse|.
  const at::Tensor W =
      at::matmul(inverse.abs(), lower.error + roundings(C + 1) * (lower.largest() + one));
  return {inverse, at::linalg_solve_triangular(one - W, at::matmul(W, inverse.abs()),
                                               /*upper=*/false)};
}

}  // namespace longspan::testing
