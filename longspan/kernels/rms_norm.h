// RMSNorm (arXiv 1910.07467) as an autograd operation. T: rows, D: numbers of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/norm_kind.h"

namespace longspan {

/// Returns the factors of a norm of this kind, outside autograd. The gradient of the factors is the
/// weight's gradient.
at::Tensor norm_factors(const at::Tensor& weight_D, NormKind kind);

/// Returns norm_factors() * h / sqrt(mean(h^2) + eps) in `dtype`. The backward is fused, and saves
/// h and one number for each row.
at::Tensor rms_norm(const at::Tensor& h_TD, const at::Tensor& weight_D, NormKind kind, double eps,
                    at::ScalarType dtype);

/// Returns zeros in which to sum a norm weight's gradient: fp64 where `like` is fp64, else fp32.
/// Undefined where the weight is frozen.
at::Tensor zeros_for_norm(const at::Tensor& weight_D, const at::TensorOptions& like);

}  // namespace longspan
