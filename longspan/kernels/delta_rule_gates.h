// Gates of the gated delta rule, and the norm after it (Gated Delta Networks, arXiv 2412.06464). T:
// tokens, N: value heads, V: numbers in a value's head.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/parameter_rows.h"

namespace longspan {

struct DeltaRuleGates {
  at::Tensor g_TN, beta_TN;
};

/// Returns g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b), in fp32 (fp64 for fp64
/// inputs). Differentiable in a and b. Gradients of the parameters are added to their .grad.
DeltaRuleGates delta_rule_gates(const at::Tensor& a_TN, const at::Tensor& b_TN,
                                const ParameterRows& a_log_N, const ParameterRows& dt_bias_N);

/// Returns weight * x / sqrt(mean(x^2) + eps) * silu(z) for each head, in the dtype of x.
/// Differentiable in x and z; saves x and z.
at::Tensor gated_rms_norm(const at::Tensor& x_TNV, const at::Tensor& z_TNV,
                          const at::Tensor& weight_V, double eps);

}  // namespace longspan
