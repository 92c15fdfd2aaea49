#include "longspan/kernels/delta_rule_gates.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {

DeltaRuleGates delta_rule_gates(const at::Tensor& a_TN, const at::Tensor& b_TN,
                                const ParameterRows& a_log_N, const ParameterRows& dt_bias_N) {
  const at::ScalarType dtype = arithmetic_dtype(a_TN.scalar_type());
  at::Tensor rate_N, step_TN, g_TN, beta_TN;
  {
    const c10::NoGradGuard no_grad;
    rate_N = a_log_N.values().to(dtype).exp().neg();
    step_TN = a_TN.to(dtype) + dt_bias_N.values().to(dtype);
    g_TN = at::softplus(step_TN).mul_(rate_N);
    beta_TN = at::sigmoid(b_TN.to(dtype));
  }
  const std::vector<at::Tensor> parameters{a_log_N.parameter, dt_bias_N.parameter};
  if (!needs_backward({a_TN, b_TN}, parameters)) return {g_TN, beta_TN};
  const auto results = attach_backward(
      {g_TN, beta_TN}, {a_TN, b_TN}, parameters,
      [=, of_a = a_TN.scalar_type(), of_b = b_TN.scalar_type(), g_TN = g_TN.detach(),
       beta_TN = beta_TN.detach()](const std::vector<at::Tensor>& gradients) {
        const c10::NoGradGuard no_grad;
        const at::Tensor da_TN = gradients[0] * rate_N * at::sigmoid(step_TN);
        // Sums over the row's tokens in fp64.
        a_log_N.add_gradient(at::sum(gradients[0] * g_TN, {0}, /*keepdim=*/false, at::kDouble));
        dt_bias_N.add_gradient(at::sum(da_TN, {0}, /*keepdim=*/false, at::kDouble));
        return std::vector<at::Tensor>{da_TN.to(of_a),
                                       at::sigmoid_backward(gradients[1], beta_TN).to(of_b)};
      });
  return {results[0], results[1]};
}

at::Tensor gated_rms_norm(const at::Tensor& x_TNV, const at::Tensor& z_TNV,
                          const at::Tensor& weight_V, double eps) {
  const int64_t V = x_TNV.size(2);
  const auto rows = [V](const at::Tensor& x) { return x.contiguous().view({-1, V}); };
  const at::ScalarType dtype = x_TNV.scalar_type();
  at::Tensor x_RV, z_RV, rstd_R, y_RV;
  {
    const c10::NoGradGuard no_grad;
    x_RV = rows(x_TNV.detach());
    z_RV = rows(z_TNV.detach());
    const NormalizedRows normal = normalize_rows(x_RV, weight_V, eps, dtype);
    rstd_R = normal.rstd_T;
    y_RV = normal.y_TD;
    swiglu_out(y_RV, z_RV, y_RV);
  }
  const at::Tensor y_TNV = y_RV.view(x_TNV.sizes());
  if (!needs_backward({x_TNV, z_TNV}, {weight_V})) return y_TNV;
  return attach_backward(
      {y_TNV}, {x_TNV, z_TNV}, {weight_V},
      [=, sizes = x_TNV.sizes().vec()](const std::vector<at::Tensor>& gradients) {
        const c10::NoGradGuard no_grad;
        at::Tensor normal_RV = scale_rows(x_RV, rstd_R, weight_V, dtype), gate_RV = z_RV.clone(),
                   dy_RV = gradients[0].contiguous().view(x_RV.sizes()).clone();
        swiglu_backward_(gate_RV, normal_RV, dy_RV);
        const at::Tensor &dz_RV = gate_RV, &dnormal_RV = normal_RV;
        const at::Tensor dweight_V = zeros_for_norm(weight_V, rstd_R.options());
        const at::Tensor dx_RV = norm_backward(dnormal_RV, x_RV, rstd_R, weight_V, {}, dweight_V);
        if (dweight_V.defined()) add_gradient(weight_V, dweight_V);
        return std::vector<at::Tensor>{dx_RV.view(sizes), dz_RV.view(sizes)};
      })[0];
}

}  // namespace longspan
