// Padding of heads, for kernels whose keys and values have the same head dim. T: tokens, N: heads,
// H: numbers in a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Returns x_TNH with each head padded by zeros to `head_dim` numbers. Zeros behind queries and
/// keys add nothing to a score. Zeros behind values make zero outputs and gradients.
at::Tensor with_head_dim(const at::Tensor& x_TNH, int64_t head_dim);

/// Returns the first `head_dim` numbers of each head. The result is contiguous where it leaves
/// numbers out.
at::Tensor without_padding(const at::Tensor& x_TNH, int64_t head_dim);

}  // namespace longspan
