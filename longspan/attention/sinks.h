// Attention sinks: one more logit per query head in the softmax, without a value (gpt-oss, arXiv
// 2508.10925; a learned form of StreamingLLM's attention sink, arXiv 2309.17453). T: queries, N:
// query heads, H: numbers in a head of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Adds the sinks to each query's whole softmax, once, after all of its parts are merged:
///   out' = out sigmoid(lse - sink), lse' = log(e^lse + e^sink).
/// A backward from out' and lse' is the backward of the softmax with its sink. Returns `result`
/// where sinks_N is undefined. Throws std::logic_error where sinks_N is defined without
/// spec.has_sinks, or undefined with it.
AttentionResult with_sinks(AttentionResult result, const at::Tensor& sinks_N,
                           const AttentionSpec& spec);

/// Returns d loss / d sinks of these queries, [N], in the dtype of the sinks:
/// -sum over queries of e^(sink - lse') rowsum(dout out'). Returns an undefined tensor if sinks_N
/// is undefined. `result` includes the sinks. If several ranks hold the queries of a row, their
/// gradients add up.
at::Tensor sink_gradient(const at::Tensor& dout_TNH, const AttentionResult& result,
                         const at::Tensor& sinks_N);

/// Returns sinks_N as an argument of an autograd function, which takes undefined tensors only as
/// nullopt.
inline std::optional<at::Tensor> as_argument(const at::Tensor& sinks_N) {
  return sinks_N.defined() ? std::optional(sinks_N) : std::nullopt;
}

}  // namespace longspan
