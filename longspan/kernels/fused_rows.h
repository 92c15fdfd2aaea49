// Fused ops over rows of activations, between the gemms. Each reads and writes memory once. The CPU
// runs loops of its own (cpu_rows.h), a GPU kernels of its own (cuda_rows.h) and, for what they do
// not take, ATen's operators (composed_rows.h). Arithmetic is in fp32 (fp64 for fp64 tensors)
// whatever the storage: fp32, bf16 or fp64. T: rows, D: model dim, I: intermediate dim, N: heads,
// H: head dim, F: pairs of a head that are rotated, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/rope.h"

namespace longspan {

/// 1 / sqrt(mean(h^2) + eps) of each row: fp32 or fp64, [T].
at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps);

/// weight * h * rstd in `dtype` (RMSNorm, arXiv 1910.07467).
at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype);

/// Both of these, where both are wanted: a GPU reads h once.
struct NormalizedRows {
  at::Tensor rstd_T, y_TD;
};
NormalizedRows normalize_rows(const at::Tensor& h_TD, const at::Tensor& weight_D, double eps,
                              at::ScalarType dtype);

/// sum = residual + norm(h), both of the residual's dtype. `sum_TD` may be the residual. A GPU
/// rounds once.
void add_normalized_out(at::Tensor& sum_TD, const at::Tensor& residual_TD, const at::Tensor& h_TD,
                        const at::Tensor& weight_D, double eps);

/// Gradient of the norm with respect to h, in the dtype of h, plus `residual_TD` (of that dtype)
/// where defined. The gradient of the weight is added to dweight_D (fp32 or fp64) where defined.
at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& h_TD, const at::Tensor& rstd_T,
                         const at::Tensor& weight_D, const at::Tensor& residual_TD,
                         const at::Tensor& dweight_D);
/// The same into memory that is there, which may be the residual's.
void norm_backward_out(at::Tensor dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D);

/// Rotates each of the table's F pairs of a head's first 2F numbers by the row's angles: where 2F <
/// H the other numbers stay as they are. Backwards when `inverse`, which is the gradient. In place
/// on a contiguous x_TNH.
void rotate_(at::Tensor& x_TNH, const RotaryTable& table, bool inverse);
/// The same into a new tensor.
at::Tensor rotate(const at::Tensor& x_TNH, const RotaryTable& table, bool inverse);

/// Every head of every row is a row to a norm of heads: [T N, H].
at::Tensor heads_as_rows(const at::Tensor& x_TNH);

/// The norm of each head (normalize_rows), rotated, in the dtype of x. Into y_TNH, which may be
/// x_TNH, both perhaps parts of longer heads; an undefined y_TNH is made. rstd_R, of heads as rows,
/// is given where it is asked for. A GPU does both in one pass, and rounds once.
void norm_rotate_out(at::Tensor& y_TNH, at::Tensor* rstd_R, const at::Tensor& x_TNH,
                     const at::Tensor& weight_H, const RotaryTable& table, double eps);
/// Its gradient, contiguous; that of the weight is added to dweight_H where defined. rstd_R may be
/// undefined.
at::Tensor norm_rotate_backward(const at::Tensor& dy_TNH, const at::Tensor& x_TNH,
                                const at::Tensor& rstd_R, const at::Tensor& weight_H,
                                const RotaryTable& table, double eps, const at::Tensor& dweight_H);

/// silu(gate) * up (SwiGLU, arXiv 2002.05202) into `out`, which may be `gate` or `up`.
void swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI);

/// On entry gate, up and d loss / d act; on return d loss / d gate, d loss / d up and act, in the
/// same memory.
void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);

/// The same of gelu(gate) * up (GeGLU, arXiv 2002.05202), with gelu in its form with tanh.
void geglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI);
void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);

/// The same of ClampedSwiglu (spec/gated_mlp_spec.h).
void clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit);
void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit);

/// For each row of logits (fp32 or fp64): lse_T = log sum exp, picked_T = logit of the label, both
/// fp64: their difference, a loss, keeps the digits of the logits.
void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T);

/// logits <- scale * (softmax(logits) - onehot(label)) in place, with a scale for each row; lse_T
/// in fp64.
void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T);
/// The same rounded to `dtype`. The logits may be overwritten.
at::Tensor cross_entropy_gradient(at::Tensor& logits_TV, const at::Tensor& labels_T,
                                  const at::Tensor& lse_T, const at::Tensor& scale_T,
                                  at::ScalarType dtype);

}  // namespace longspan
