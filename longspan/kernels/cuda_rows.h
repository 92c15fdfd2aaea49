// The passes of fused_rows.h as kernels (cuda/rows) on GPU tensors. Each function returns true
// where it has done its work, and false for tensors that are on no GPU, for fp64, for unsupported
// layouts, for rows longer than kMostNumbers, and where the kernels are unavailable or switched off
// (cuda/kernels.h). Results are bit-reproducible: they depend only on the tensors and the GPU's
// model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "longspan/kernels/rope.h"

namespace longspan::cuda_rows {

/// Longest row of the norms, which hold rows in registers. Rows of bf16 only may be twice as long.
inline constexpr int64_t kMostNumbers = 8192;

/// Computes reciprocal_rms() where `rstd_T` is undefined. Writes scale_rows() into `y_TD` where
/// y_TD is defined, plus `residual_TD` (like y) where residual_TD is defined.
bool norm_forward(at::Tensor& rstd_T, at::Tensor& y_TD, const at::Tensor& h_TD,
                  const at::Tensor& weight_D, const at::Tensor& residual_TD, double eps);
bool norm_backward_out(at::Tensor& dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D);
/// Writes rotate() into y_TNH, which is contiguous and may be x.
bool rotate_out(at::Tensor& y_TNH, const at::Tensor& x_TNH, const RotaryTable& table, bool inverse);

/// Writes each head's norm, rotated by halves, into y_TNH, which may be x. Heads may be parts of
/// longer heads. Makes rstd_R, for each head of each row, unless rstd_R is null.
bool norm_rotate_out(at::Tensor& y_TNH, at::Tensor* rstd_R, const at::Tensor& x_TNH,
                     const at::Tensor& weight_H, const RotaryTable& table, double eps);
/// Writes the gradient into dx_TNH, which is contiguous. Computes an undefined rstd_R.
bool norm_rotate_backward_out(at::Tensor& dx_TNH, const at::Tensor& dy_TNH, const at::Tensor& x_TNH,
                              const at::Tensor& rstd_R, const at::Tensor& weight_H,
                              const RotaryTable& table, double eps, const at::Tensor& dweight_H);

enum class Gate { kSwiglu, kGeglu };
bool gated_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI, Gate kind);
bool gated_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI, Gate kind);
bool clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit);
bool clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit);

bool log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor& lse_T,
                      at::Tensor& picked_T);
/// Writes cross_entropy_gradient() into out_TV, which is fp32 or bf16 and may be the logits.
bool cross_entropy_gradient_out(at::Tensor& out_TV, const at::Tensor& logits_TV,
                                const at::Tensor& labels_T, const at::Tensor& lse_T,
                                const at::Tensor& scale_T);

/// Dropout of numbers whose hash is below `limit`, out of 2^53 (dropout.h). keys_T: int64.
bool drop_out(at::Tensor& y_TI, const at::Tensor& x_TI, const at::Tensor& keys_T, uint64_t seed,
              int64_t limit, double scale);

}  // namespace longspan::cuda_rows
