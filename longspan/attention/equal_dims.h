// Padding of heads, for kernels that need the same head dim for keys and values. T: tokens, N:
// heads, H: elements of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Returns x_TNH with zeros appended to each head, up to `head_dim` elements. The appended zeros of
/// queries and keys do not change scores. The appended zeros of values give zeros in outputs and
/// gradients.
at::Tensor with_head_dim(const at::Tensor& x_TNH, int64_t head_dim);

/// Returns the first `head_dim` elements of each head. The result is contiguous if elements are
/// removed.
at::Tensor without_padding(const at::Tensor& x_TNH, int64_t head_dim);

}  // namespace longspan
