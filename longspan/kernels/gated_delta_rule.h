// The gated delta rule (Gated Delta Networks, arXiv 2412.06464), a recurrence over the tokens of a
// row. Each head has a state S of K x V numbers, and for each token
//   S <- exp(g) S,   S <- S + k (beta (v - S^T k))^T,   o = S^T q.
// T: tokens, M: heads of queries and keys, N: heads of values (a multiple of M; value head n uses
// key head n / (N / M)), K: numbers in a query's and a key's head, V: numbers in a value's head.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/rows/packing.h"

namespace longspan {

/// Inputs of the rule. g <= 0 is the logarithm of a decay. Usually 0 <= beta <= 1.
struct DeltaRuleInputs {
  at::Tensor q_TMK, k_TMK, v_TNV;
  at::Tensor g_TN, beta_TN;
};

struct DeltaRuleResult {
  at::Tensor out_TNV;    // in the dtype of v
  at::Tensor state_NKV;  // after the last token; fp32, or fp64 for fp64 inputs
};

/// Computes the rule. First normalizes queries and keys, x / sqrt(sum x^2 + 1e-6), and divides
/// queries by sqrt(K), as transformers does. The first document begins with `initial_NKV` where
/// initial_NKV is defined; other documents begin with a zero state. Documents have no forks.
///
/// Differentiable in all inputs and the initial state. Computes in fp32 (fp64 for fp64 inputs), in
/// chunks of 64 tokens by gemms (the WY form of arXiv 2406.06484, with decays), so time is linear
/// in T. Saves its inputs and a state for each 512 tokens. On devices other than CPUs this function
/// calls gated_delta_rule_composed().
DeltaRuleResult gated_delta_rule(const DeltaRuleInputs& inputs, const Packing& packing,
                                 const at::Tensor& initial_NKV);

/// As gated_delta_rule(), by ATen's operators, on any device: all chunks of a segment and all heads
/// at once. The backward recomputes one segment at a time.
DeltaRuleResult gated_delta_rule_composed(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV);

/// As gated_delta_rule(), one token at a time, by ATen operations with autograd's gradients: the
/// definition, for tests and for token-by-token generation.
DeltaRuleResult gated_delta_rule_by_token(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV);

}  // namespace longspan
