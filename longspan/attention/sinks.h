// Attention sinks: one additional logit per query head in the softmax, without a value (gpt-oss,
// arXiv 2508.10925; a learned form of StreamingLLM's attention sink, arXiv 2309.17453). T: queries,
// N: query heads, H: elements of a head of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Adds the sinks to each query's softmax, once, after all parts of the softmax are merged:
///   out' = out sigmoid(lse - sink), lse' = log(e^lse + e^sink).
/// The backward with out' and lse' is the backward of the softmax with the sink. Returns `result`
/// if sinks_N is undefined. Throws std::logic_error if sinks_N.defined() differs from
/// spec.has_sinks.
AttentionResult with_sinks(AttentionResult result, const at::Tensor& sinks_N,
                           const AttentionSpec& spec);

/// Returns d loss / d sinks of these queries, [N], in the dtype of the sinks:
///   -sum over queries of e^(sink - lse') rowsum(dout out').
/// Returns an undefined tensor if sinks_N is undefined. `result` includes the sinks. If several
/// ranks hold the queries of a row, the gradient is the sum over these ranks.
at::Tensor sink_gradient(const at::Tensor& dout_TNH, const AttentionResult& result,
                         const at::Tensor& sinks_N);

/// Returns sinks_N as an argument of an autograd function, which accepts an undefined tensor only
/// as nullopt.
inline std::optional<at::Tensor> as_argument(const at::Tensor& sinks_N) {
  return sinks_N.defined() ? std::optional(sinks_N) : std::nullopt;
}

}  // namespace longspan
