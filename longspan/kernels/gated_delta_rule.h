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
/// Differentiable in all inputs and the initial state. Computes in chunks of 64 tokens by gemms
/// (the WY form of arXiv 2406.06484, with decays), so time is linear in T. On a CPU it computes in
/// fp32 (fp64 for fp64 inputs), and saves its inputs and a state for each 512 tokens. On other
/// devices it calls gated_delta_rule_composed().
DeltaRuleResult gated_delta_rule(const DeltaRuleInputs& inputs, const Packing& packing,
                                 const at::Tensor& initial_NKV);

/// As gated_delta_rule(), on any device: all heads and all chunks of a part of the row at once, by
/// batched gemms, and by kernels where the device has them (kernels/delta_part.h), else by ATen's
/// operators. Kernels round operands of gemms to the dtype of v; states pass from chunk to chunk in
/// fp32. Saves the inputs and the state before each part. The backward recomputes one part at a
/// time. `part_tokens`: tokens of a part, whole chunks; 0: as many as spec/composed_rule.h gives
/// the heads.
DeltaRuleResult gated_delta_rule_composed(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV, int64_t part_tokens = 0);

/// As gated_delta_rule(), one token at a time, by ATen operations with autograd's gradients: the
/// definition, for tests and for token-by-token generation.
DeltaRuleResult gated_delta_rule_by_token(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV);

}  // namespace longspan
