// What the gated delta rule goes by besides queries, keys and values, and the norm behind it
// (Gated Delta Networks, arXiv 2412.06464).
// T: tokens, N: value heads, V: numbers in a value's head.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/parameter_rows.h"

namespace longspan {

struct DeltaRuleGates {
  at::Tensor g_TN, beta_TN;
};

/// g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b), in fp32 (fp64 of fp64 inputs).
/// Differentiable in a and b; gradients of the parameters are added to their .grad.
DeltaRuleGates delta_rule_gates(const at::Tensor& a_TN, const at::Tensor& b_TN,
                                const ParameterRows& a_log_N, const ParameterRows& dt_bias_N);

/// weight * x / sqrt(mean(x^2) + eps) * silu(z) of each head, in the dtype of x. Differentiable in
/// x and z; saves both.
at::Tensor gated_rms_norm(const at::Tensor& x_TNV, const at::Tensor& z_TNV,
                          const at::Tensor& weight_V, double eps);

}  // namespace longspan
