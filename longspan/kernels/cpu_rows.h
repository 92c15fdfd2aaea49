// The passes of fused_rows.h as loops over the rows of CPU tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/rope.h"

namespace longspan::cpu_rows {

at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps);
at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype);
/// dh_TD: contiguous, in the dtype of h; may be the residual.
void norm_backward_out(at::Tensor& dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D);
void rotate_(at::Tensor& x_TNH, const RotaryTable& table, bool inverse);
void swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI);
void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);
void geglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI);
void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);
void clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit);
void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit);
void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T);
void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T);

}  // namespace longspan::cpu_rows
