// The passes of fused_rows.h, composed of ATen's operators: for inputs that no GPU kernel supports,
// and as the reference in tests.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/rope.h"

namespace longspan::composed {

at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps);
at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype);
at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& h_TD, const at::Tensor& rstd_T,
                         const at::Tensor& weight_D, const at::Tensor& residual_TD,
                         const at::Tensor& dweight_D);
at::Tensor rotate(const at::Tensor& x_TNH, const RotaryTable& table, bool inverse);
at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI);
void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);
at::Tensor geglu(const at::Tensor& gate_TI, const at::Tensor& up_TI);
void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);
at::Tensor clamped_swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI, double slope,
                          double limit);
void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit);
void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T);
void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T);

}  // namespace longspan::composed
