// The gated delta rule (Gated Delta Networks, arXiv 2412.06464), a recurrence over the tokens of a
// row. Per head it holds a state S of K x V numbers, and for each token
//   S <- exp(g) S,   S <- S + k (beta (v - S^T k))^T,   o = S^T q.
// T: tokens, M: heads of queries and keys, N: heads of values (a multiple of M; value head n goes
// with key head n / (N / M)), K: numbers in a query's and a key's head, V: in a value's.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/data/packing.h"

namespace longspan {

/// What a row is mixed by. Gates are logarithms of decays, g <= 0; 0 <= beta <= 1 mostly.
struct DeltaRuleInputs {
  at::Tensor q_TMK, k_TMK, v_TNV;
  at::Tensor g_TN, beta_TN;
};

struct DeltaRuleResult {
  at::Tensor out_TNV;    // in the dtype of v
  at::Tensor state_NKV;  // after the last token; fp32, or fp64 of fp64 inputs
};

/// Queries and keys are normalized first, x / sqrt(sum x^2 + 1e-6), and queries are then divided by
/// sqrt(K), as transformers does. Each document begins with a state of zeros, but for the first,
/// which begins with `initial_NKV` where that is defined. Documents are not forked.
///
/// Differentiable in all inputs and the initial state. Computed in fp32 (fp64 of fp64 inputs) by
/// chunks of 64 tokens as gemms (the WY form of arXiv 2406.06484, with decays), so time
/// is linear in T. From forward to backward it saves its inputs, and a state for each 512
/// tokens. On other devices than CPUs gated_delta_rule_composed() computes it.
DeltaRuleResult gated_delta_rule(const DeltaRuleInputs& inputs, const Packing& packing,
                                 const at::Tensor& initial_NKV);

/// The same by operators of ATen, on any device: a segment's chunks and all heads at once. What a
/// segment of the backward wants it computes again.
DeltaRuleResult gated_delta_rule_composed(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV);

/// The same a token at a time, in operations of ATen with autograd's own gradients: what it is, for
/// tests and for what goes on token by token.
DeltaRuleResult gated_delta_rule_by_token(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV);

}  // namespace longspan
