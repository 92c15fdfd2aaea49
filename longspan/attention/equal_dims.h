// Heads of other values than keys for kernels that know one head dim. T: tokens, N: heads, H:
// numbers in a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// x_TNH with zeros behind each head, up to `head_dim` numbers. Zeros behind queries and keys add
/// nothing to a score; those behind values make outputs and gradients of zeros.
at::Tensor with_head_dim(const at::Tensor& x_TNH, int64_t head_dim);

/// The first `head_dim` numbers of each head, contiguous where that is not all of them.
at::Tensor without_padding(const at::Tensor& x_TNH, int64_t head_dim);

}  // namespace longspan
