// The distance of two tensors in the norm of the tests, and the allowed distance.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan::testing {

/// Returns |actual - expected| / |expected| in the Frobenius norm, computed in fp64. One number for
/// the whole tensor, so that a single small element that cancels does not dominate the result. An
/// element that is wrong by its own size still shows as 1 / sqrt(elements), far above rounding.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

/// Returns the allowed distance from `exact` for a tensor computed from the same sums as `other` in
/// another order.
///
/// The distance of both from exact arithmetic comes from roundings that propagate through the same
/// problem. Another order of summation gives other roundings of the same size, and the norm of a
/// tensor may depend on a few roundings. So the limit is four times the distance of `other`. An
/// `other` that is close by luck does not count as closer than 8 roundings of its dtype, fp32 or
/// fp64. The limit depends neither on the kernels nor on the condition of the problem, which both
/// tensors share. An error in both is not detected: check that `other` itself is near `exact`.
double allowed_error(const at::Tensor& other, const at::Tensor& exact);

}  // namespace longspan::testing
