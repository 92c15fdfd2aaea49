// A causal depthwise convolution with silu. T: tokens, C: channels, W: tokens that an output
// depends on, its own included.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/parameter_rows.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Returns silu(sum over w of weight[w] x[t - W + 1 + w]), [T, C] in the dtype of x. The sum leaves
/// out tokens before the document of t. If `before_PC` is defined, the first document continues
/// these P <= W - 1 tokens.
///
/// Differentiable in x and `before`. Gradients of the weight, [C, 1, W], are added to its .grad.
/// Computes in fp32 (fp64 for fp64 inputs).
at::Tensor causal_conv_silu(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                            const Packing& packing, const at::Tensor& before_PC);

/// As causal_conv_silu(), for devices other than CPUs: by kernels where the device has them, else
/// by ATen's operators.
at::Tensor causal_conv_silu_composed(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                                     const Packing& packing, const at::Tensor& before_PC);

}  // namespace longspan
