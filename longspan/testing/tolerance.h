// How far two tensors are apart, in the norm that the tests state.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan::testing {

/// |actual - expected| / |expected| in the Frobenius norm, computed in fp64. One number for the
/// whole tensor, so that a single small element that cancels does not decide; an element that is
/// wrong by its own size still shows as 1 / sqrt(elements), far above rounding.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace longspan::testing
