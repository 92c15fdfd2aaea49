// A causal convolution of each channel by itself, with silu behind it.
// T: tokens, C: channels, W: tokens that an output sees, itself among them.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/data/packing.h"
#include "longspan/kernels/parameter_rows.h"

namespace longspan {

/// silu(sum over w of weight[w] x[t - W + 1 + w]), without what lies before the token's document.
/// The first document goes on from `before_PC`, P <= W - 1 tokens, where that is defined.
///
/// Differentiable in x and `before`; gradients of the weight, [C, 1, W], are added to its .grad.
/// Computed in fp32 (fp64 of fp64 inputs) -> [T, C] in the dtype of x.
at::Tensor causal_conv_silu(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                            const Packing& packing, const at::Tensor& before_PC);

/// The same by operators of ATen, which computes it on other devices than CPUs.
at::Tensor causal_conv_silu_composed(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                                     const Packing& packing, const at::Tensor& before_PC);

}  // namespace longspan
