// The causal convolution with silu (kernels/causal_conv.h) as GPU kernels
// (cuda/rows/causal_conv.cu). Each function does nothing where there is no kernel for its tensors,
// as in cuda_rows.h. T: tokens, J: channels, P: tokens before a row, W: taps.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan::cuda_rows {

/// Tensors of a convolution, fp32 or bf16.
struct ConvInputs {
  at::Tensor x_TJ, before_PJ;  // before: may be undefined
  at::Tensor weight_WJ;        // fp32, 4 taps
  at::Tensor earlier_T;        // uint8: how many earlier tokens a token sees, at most 3
};

/// Writes y, like x. Returns whether there is a kernel.
bool causal_conv(const ConvInputs& in, const at::Tensor& y_TJ);
/// Returns the gradient of the weight, fp64; undefined where there is no kernel. Writes dx and
/// dbefore, like x and before.
at::Tensor causal_conv_backward(const ConvInputs& in, const at::Tensor& dy_TJ,
                                const at::Tensor& dx_TJ, const at::Tensor& dbefore_PJ);

}  // namespace longspan::cuda_rows
