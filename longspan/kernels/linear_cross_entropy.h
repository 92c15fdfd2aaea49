// The head and its softmax, fused, one chunk of rows at a time. L: label positions, D: model dim,
// V: vocabulary, C: rows of a chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace longspan {

/// Most bytes of logits in memory, for tests; empty: chosen for the device (spec/device_sizes.h).
using ChunkBytes = std::optional<int64_t>;

/// Returns log softmax(hidden W^T)[label], [L] in fp64, so that sums over rows and small
/// differences of large sums lose no digits beyond those of the logits (fp32, or fp64 for fp64).
/// Saves only the log-sum-exp. The backward recomputes the logits. Four gemms in all.
at::Tensor linear_token_logprobs(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                 const at::Tensor& labels_L, ChunkBytes chunk_bytes = {});

/// Facts about the head's gradient that the forward pass knows.
struct HeadGradient {
  /// d loss / d result. The forward pass scales gradients by `upstream` and adds them to the
  /// gradients of earlier rows. The backward throws for another value.
  std::optional<double> upstream;
  /// weight.grad is undefined or all zeros.
  bool is_zero = false;
};

/// Returns the negative sum of linear_token_logprobs(), a scalar in fp64. Computes its gradients in
/// the forward pass, which has the logits, and scales them in the backward: three gemms.
///
/// Where weight.grad already holds the gradient of another row, the new gradient is a second
/// tensor, added in the backward. With a known `upstream` the new gradient is added in the forward
/// pass, so there are never two tensors of that size. A bf16 gradient is summed in fp32 over
/// several chunks. With a known `upstream` the sum is scaled before rounding, so it is rounded
/// once.
at::Tensor linear_nll_sum(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                          const at::Tensor& labels_L, ChunkBytes chunk_bytes = {},
                          const HeadGradient& known = {});

}  // namespace longspan
