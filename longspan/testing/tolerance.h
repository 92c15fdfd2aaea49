// How far two tensors are apart, in the norm that the tests state, and how far they may be.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan::testing {

/// |actual - expected| / |expected| in the Frobenius norm, computed in fp64. One number for the
/// whole tensor, so that a single small element that cancels does not decide; an element that is
/// wrong by its own size still shows as 1 / sqrt(elements), far above rounding.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

/// How far from `exact` a tensor may be that comes from the same sums as `other`, in another order.
///
/// Either one's distance from exact arithmetic is that of its roundings, carried through the same
/// problem: they are as large in one order as in another, but not the same, and the norm of a
/// tensor may hang on a few of them. So four times the other's distance. An `other` that comes
/// close by luck does not count as closer than 8 roundings of its dtype, fp32 or fp64. Nothing in
/// this depends on which kernels compute, or on the problem's condition: both have that in common.
/// A mistake that both make they have in common, too: check that `other` itself is near `exact`.
double allowed_error(const at::Tensor& other, const at::Tensor& exact);

}  // namespace longspan::testing
