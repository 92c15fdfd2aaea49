// Sinks: one more logit a query head in the softmax, with no value (gpt-oss, arXiv 2508.10925;
// StreamingLLM's attention sink as a learned number, arXiv 2309.17453). T: queries, N: query heads,
// H: numbers in a head of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Adds the sinks to a query's whole softmax, once, when all of its parts are merged:
/// out' = out sigmoid(lse - sink), lse' = log(e^lse + e^sink). A backward from out' and lse' is
/// that of the softmax with its sink. Where sinks_N is undefined nothing is done. Throws
/// std::logic_error where a spec has sinks and none are given, or the other way round.
AttentionResult with_sinks(AttentionResult result, const at::Tensor& sinks_N,
                           const AttentionSpec& spec);

/// d loss / d sinks of these queries, [N], in the dtype of the sinks; undefined where they are:
/// -sum over queries of e^(sink - lse') rowsum(dout out'). `result` has the sinks. Of queries that
/// are spread over ranks, gradients add up.
at::Tensor sink_gradient(const at::Tensor& dout_TNH, const AttentionResult& result,
                         const at::Tensor& sinks_N);

/// For an operation of autograd, whose arguments may be undefined as optional ones alone.
inline std::optional<at::Tensor> as_argument(const at::Tensor& sinks_N) {
  return sinks_N.defined() ? std::optional(sinks_N) : std::nullopt;
}

}  // namespace longspan
