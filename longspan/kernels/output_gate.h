// The gate of an attention's output. T: tokens, N: heads, K, G: numbers of the two parts of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace longspan {

/// Splits x_TNJ, J = K + G, into the first K numbers of each head and the other G, each contiguous.
/// Differentiable; saves nothing.
std::pair<at::Tensor, at::Tensor> split_heads(const at::Tensor& x_TNJ, int64_t K);

/// Returns x * sigmoid(gate), elementwise. Differentiable; saves x and gate.
at::Tensor gated(const at::Tensor& x_TNG, const at::Tensor& gate_TNG);

}  // namespace longspan
