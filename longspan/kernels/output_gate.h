// The gate of an attention's output. T: tokens, N: heads, K, G: numbers of a head's two parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace longspan {

/// Of x_TNJ, J = K + G: the first K numbers of each head and the G after them, each contiguous.
/// Differentiable; saves nothing.
std::pair<at::Tensor, at::Tensor> split_heads(const at::Tensor& x_TNJ, int64_t K);

/// x * sigmoid(gate), number by number. Differentiable; the backward saves both.
at::Tensor gated(const at::Tensor& x_TNG, const at::Tensor& gate_TNG);

}  // namespace longspan
