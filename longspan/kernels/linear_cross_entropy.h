// The head and its softmax in one, a chunk of rows at a time.
// L: label positions, D: model dim, V: vocabulary, C: rows of a chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace longspan {

/// Bytes of logits alive at any time, for tests; empty: as many as suit the device
/// (spec/device_sizes.h).
using ChunkBytes = std::optional<int64_t>;

/// log softmax(hidden W^T)[label], [L] fp64: what is summed over rows, or compared as a small
/// difference of large sums, loses no digits but those of the logits (fp32, or fp64 for fp64).
/// Saves the log-sum-exp only; the backward makes the logits again. Four gemms in all.
at::Tensor linear_token_logprobs(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                 const at::Tensor& labels_L, ChunkBytes chunk_bytes = {});

/// What is known in the forward pass of the head's gradient.
struct HeadGradient {
  /// d loss / d result. The forward pass scales gradients by it and adds them to those of earlier
  /// rows; the backward throws where it is given another.
  std::optional<double> upstream;
  /// weight.grad, where there is one, is all zeros.
  bool is_zero = false;
};

/// The negative sum of the above, a scalar in fp64. Its gradients are made in the forward pass
/// while the logits are at hand, and scaled in the backward: three gemms.
///
/// Where weight.grad already holds something (of another row of the step), the gradient is made
/// beside it and added in the backward; with a known `upstream` it is added to it in the forward
/// pass, so that there are never two of that size. A bf16 gradient is summed in fp32 over several
/// chunks. With a known `upstream` it is scaled before it is rounded, so that it is rounded once.
at::Tensor linear_nll_sum(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                          const at::Tensor& labels_L, ChunkBytes chunk_bytes = {},
                          const HeadGradient& known = {});

}  // namespace longspan
