// The head and its softmax, fused, one chunk of rows at a time. L: label positions, D: model dim,
// V: vocabulary, C: rows of a chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "longspan/kernels/head_chunks.h"

namespace longspan {

/// Returns log softmax(hidden W^T)[label], [L] in fp64. Because of fp64, sums over rows and small
/// differences of large sums keep the precision of the logits (fp32, or fp64 for fp64). Saves only
/// the log-sum-exp. The backward recomputes the logits. Four gemms in all.
at::Tensor linear_token_logprobs(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                 const at::Tensor& labels_L, ChunkBytes chunk_bytes = {});

struct TokenScoreOptions {
  /// Logits are divided by this positive number before the softmax.
  double temperature = 1.0;
  bool entropies = false;
  /// c in c tanh(logits / c), before the temperature (Gemma 2, arXiv 2408.00118); positive.
  std::optional<double> softcap = {};
};

/// [L] in fp64 each.
struct TokenScores {
  at::Tensor logprobs_L;
  at::Tensor entropies_L = {};  // undefined unless requested
  at::Tensor lse_L = {};        // log-sum-exp of the logits, without gradient
};

/// As linear_token_logprobs(), at a temperature. Also returns, without gradient, the entropies of
/// the softmax in nats, from the same logits. Throws c10::Error for a temperature that is not
/// positive.
TokenScores linear_token_scores(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                const at::Tensor& labels_L, const TokenScoreOptions& options,
                                ChunkBytes chunk_bytes = {});

/// Returns d loss / d hidden for d loss / d logprobs, without an autograd graph, and adds the
/// weight's gradient to .grad if the weight trains. lse_L: of linear_token_scores().
at::Tensor linear_token_scores_backward(const at::Tensor& dlogprobs_L, const at::Tensor& hidden_LD,
                                        const at::Tensor& weight_VD, const at::Tensor& labels_L,
                                        const at::Tensor& lse_L, const TokenScoreOptions& options,
                                        ChunkBytes chunk_bytes = {});

/// Facts about the head's gradient that the forward pass knows.
struct HeadGradient {
  /// d loss / d result. The forward pass scales gradients by `upstream` and adds them to the
  /// gradients of earlier rows. The backward throws for another value.
  std::optional<double> upstream;
  /// weight.grad is undefined or all zeros.
  bool is_zero = false;
};

/// A chunk of label positions: the logits, the labels, and the losses -log p in fp64.
struct LossChunk {
  at::Tensor logits_CV, labels_C, nll_C;
};
/// Returns a factor for each loss of a chunk, [C], on the device of the logits. The calls have
/// the chunks in order. The factors are constants: they have no gradient.
using LossFactors = std::function<at::Tensor(const LossChunk& chunk)>;

/// Returns the negative sum of linear_token_logprobs(), a scalar in fp64. Computes its gradients in
/// the forward pass, which has the logits, and scales them in the backward: three gemms.
///
/// Where weight.grad already holds the gradient of another row, the new gradient is a second
/// tensor, added in the backward. With a known `upstream` the new gradient is added in the forward
/// pass, so there are never two tensors of that size. A bf16 gradient is summed in fp32 over
/// several chunks. With a known `upstream` the sum is scaled before rounding, so it is rounded
/// once.
///
/// `factors`: multiply the terms of the sum; none: 1.
at::Tensor linear_nll_sum(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                          const at::Tensor& labels_L, ChunkBytes chunk_bytes = {},
                          const HeadGradient& known = {}, const LossFactors& factors = {});

}  // namespace longspan
