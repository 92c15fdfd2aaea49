// Fused operations over rows of activations, between the gemms. Each operation reads and writes
// memory once. A CPU runs loops (cpu_rows.h). A GPU runs kernels (cuda_rows.h), and ATen's
// operators (composed_rows.h) for other inputs. Storage is fp32, bf16 or fp64; arithmetic is fp32
// (fp64 for fp64 tensors). T: rows, D: model dim, I: intermediate dim, N: heads, H: head dim, F:
// rotated pairs of a head, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/rope.h"

namespace longspan {

/// Returns 1 / sqrt(mean(h^2) + eps) of each row: fp32 or fp64, [T].
at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps);

/// Returns weight * h * rstd in `dtype` (RMSNorm, arXiv 1910.07467).
at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype);

/// The results of reciprocal_rms() and scale_rows(). A GPU reads h once for both.
struct NormalizedRows {
  at::Tensor rstd_T, y_TD;
};
NormalizedRows normalize_rows(const at::Tensor& h_TD, const at::Tensor& weight_D, double eps,
                              at::ScalarType dtype);

/// sum = residual + norm(h), both in the residual's dtype. `sum_TD` may be the residual. A GPU
/// rounds once.
void add_normalized_out(at::Tensor& sum_TD, const at::Tensor& residual_TD, const at::Tensor& h_TD,
                        const at::Tensor& weight_D, double eps);

/// Returns the norm's gradient with respect to h, in the dtype of h, plus `residual_TD` (same
/// dtype) where defined. Adds the weight's gradient to dweight_D (fp32 or fp64) where defined.
at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& h_TD, const at::Tensor& rstd_T,
                         const at::Tensor& weight_D, const at::Tensor& residual_TD,
                         const at::Tensor& dweight_D);
/// As norm_backward(), written into dh_TD, which may be the residual.
void norm_backward_out(at::Tensor dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D);

/// Rotates the first 2F numbers of each head, in F pairs, by the row's angles, in place. Other
/// elements stay unchanged. `inverse` rotates backwards, which is the gradient. x_TNH is
/// contiguous.
void rotate_(at::Tensor& x_TNH, const RotaryTable& table, bool inverse);
/// Returns the result of rotate_() as a new tensor.
at::Tensor rotate(const at::Tensor& x_TNH, const RotaryTable& table, bool inverse);

/// Views every head of every row as a row: [T N, H].
at::Tensor heads_as_rows(const at::Tensor& x_TNH);

/// Normalizes (normalize_rows) and rotates each head. Writes the result, in the dtype of x, into
/// y_TNH; allocates an undefined y_TNH. y_TNH may be x_TNH, and both may be parts of longer heads.
/// Sets rstd_R, of heads as rows, unless rstd_R is null. A GPU makes one pass and rounds once.
void norm_rotate_out(at::Tensor& y_TNH, at::Tensor* rstd_R, const at::Tensor& x_TNH,
                     const at::Tensor& weight_H, const RotaryTable& table, double eps);
/// Returns the gradient of norm_rotate_out(), contiguous. Adds the weight's gradient to dweight_H
/// where defined. rstd_R may be undefined.
at::Tensor norm_rotate_backward(const at::Tensor& dy_TNH, const at::Tensor& x_TNH,
                                const at::Tensor& rstd_R, const at::Tensor& weight_H,
                                const RotaryTable& table, double eps, const at::Tensor& dweight_H);

/// Writes silu(gate) * up (SwiGLU, arXiv 2002.05202) into `out`, which may be `gate` or `up`.
void swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI);

/// Replaces gate, up and d loss / d act by d loss / d gate, d loss / d up and act, in place.
void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);

/// As swiglu_out() and swiglu_backward_(), for gelu(gate) * up (GeGLU, arXiv 2002.05202), with the
/// tanh form of gelu.
void geglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI);
void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI);

/// As swiglu_out() and swiglu_backward_(), for ClampedSwiglu (spec/gated_mlp_spec.h).
void clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit);
void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit);

/// Computes, for each row of logits (fp32 or fp64), lse_T = log sum exp and picked_T = the label's
/// logit. Both are fp64, so that their difference, a loss, keeps the digits of the logits.
void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T);

/// Replaces logits by scale * (softmax(logits) - onehot(label)) in place. scale_T: one factor for
/// each row. lse_T: fp64.
void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T);
/// Returns the result of cross_entropy_gradient_() in `dtype`. May overwrite the logits.
at::Tensor cross_entropy_gradient(at::Tensor& logits_TV, const at::Tensor& labels_T,
                                  const at::Tensor& lse_T, const at::Tensor& scale_T,
                                  at::ScalarType dtype);

}  // namespace longspan
