// Chooses the code: a CPU's loops, a GPU's kernels, or ATen's operators.
#include "longspan/kernels/fused_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "longspan/kernels/composed_rows.h"
#include "longspan/kernels/cpu_rows.h"
#include "longspan/kernels/cuda_rows.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {

using cuda_rows::Gate;

namespace {

int64_t rows_of_part(const at::Tensor& x) {
  return composed_rows(x.numel() / std::max<int64_t>(1, x.size(0)));
}

/// Whether for_composed_rows() has one part: a result of its own then needs no copy.
bool is_one_part(const at::Tensor& x) { return x.size(0) <= rows_of_part(x); }

/// Calls work(part) for some rows of x at a time; part(tensor) returns those rows. ATen's operators
/// need several fp32 tensors of that size, so they get few rows.
template <typename Work>
void for_composed_rows(const at::Tensor& x, const Work& work) {
  const int64_t T = x.size(0), rows = rows_of_part(x);
  for (int64_t begin = 0; begin < T; begin += rows) {
    const int64_t size = std::min(rows, T - begin);
    work([&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, begin, size) : tensor;
    });
  }
}

void rotate_composed(const at::Tensor& y_TNH, const at::Tensor& x_TNH, const RotaryTable& table,
                     bool inverse) {
  for_composed_rows(x_TNH, [&](const auto& part) {
    const RotaryTable angles{part(table.cos_TF), part(table.sin_TF), table.pairs};
    part(y_TNH).copy_(composed::rotate(part(x_TNH), angles, inverse));
  });
}

}  // namespace

at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps) {
  if (h_TD.is_cpu()) return cpu_rows::reciprocal_rms(h_TD, eps);
  at::Tensor rstd_T, no_y;
  if (cuda_rows::norm_forward(rstd_T, no_y, h_TD.contiguous(), {}, {}, eps)) return rstd_T;
  if (is_one_part(h_TD)) return composed::reciprocal_rms(h_TD, eps);
  rstd_T = at::empty({h_TD.size(0)}, h_TD.options().dtype(arithmetic_dtype(h_TD.scalar_type())));
  for_composed_rows(h_TD, [&](const auto& part) {
    part(rstd_T).copy_(composed::reciprocal_rms(part(h_TD), eps));
  });
  return rstd_T;
}

at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype) {
  if (h_TD.is_cpu()) return cpu_rows::scale_rows(h_TD, rstd_T, weight_D, dtype);
  auto y_TD = at::empty(h_TD.sizes(), h_TD.options().dtype(dtype));
  at::Tensor given_T = rstd_T.contiguous();
  if (cuda_rows::norm_forward(given_T, y_TD, h_TD.contiguous(), weight_D.contiguous(), {}, 0)) {
    return y_TD;
  }
  if (is_one_part(h_TD)) return composed::scale_rows(h_TD, rstd_T, weight_D, dtype);
  for_composed_rows(h_TD, [&](const auto& part) {
    part(y_TD).copy_(composed::scale_rows(part(h_TD), part(rstd_T), weight_D, dtype));
  });
  return y_TD;
}

NormalizedRows normalize_rows(const at::Tensor& h_TD, const at::Tensor& weight_D, double eps,
                              at::ScalarType dtype) {
  if (!h_TD.is_cpu()) {
    NormalizedRows rows{{}, at::empty(h_TD.sizes(), h_TD.options().dtype(dtype))};
    if (cuda_rows::norm_forward(rows.rstd_T, rows.y_TD, h_TD.contiguous(), weight_D.contiguous(),
                                {}, eps)) {
      return rows;
    }
  }
  const auto rstd_T = reciprocal_rms(h_TD, eps);
  return {rstd_T, scale_rows(h_TD, rstd_T, weight_D, dtype)};
}

void add_normalized_out(at::Tensor& sum_TD, const at::Tensor& residual_TD, const at::Tensor& h_TD,
                        const at::Tensor& weight_D, double eps) {
  at::Tensor rstd_T;
  if (!h_TD.is_cpu() &&
      cuda_rows::norm_forward(rstd_T, sum_TD, h_TD.contiguous(), weight_D.contiguous(),
                              residual_TD.contiguous(), eps)) {
    return;
  }
  for_composed_rows(h_TD, [&](const auto& part) {
    const at::Tensor h = part(h_TD), residual = part(residual_TD);
    at::Tensor sum = part(sum_TD);
    at::add_out(sum, residual,
                scale_rows(h, reciprocal_rms(h, eps), weight_D, residual.scalar_type()));
  });
}

void norm_backward_out(at::Tensor dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D) {
  const bool direct = dh_TD.is_contiguous() && dh_TD.scalar_type() == h_TD.scalar_type();
  if (h_TD.is_cpu()) {
    auto out_TD = direct ? dh_TD : at::empty(h_TD.sizes(), h_TD.options());
    cpu_rows::norm_backward_out(out_TD, dy_TD, h_TD, rstd_T, weight_D, residual_TD, dweight_D);
    if (!direct) dh_TD.copy_(out_TD);
    return;
  }
  const at::Tensor residual = residual_TD.defined() ? residual_TD.contiguous() : residual_TD;
  if (!direct || !cuda_rows::norm_backward_out(dh_TD, dy_TD.contiguous(), h_TD.contiguous(),
                                               rstd_T.contiguous(), weight_D.contiguous(), residual,
                                               dweight_D)) {
    for_composed_rows(h_TD, [&](const auto& part) {
      part(dh_TD).copy_(composed::norm_backward(part(dy_TD), part(h_TD), part(rstd_T), weight_D,
                                                part(residual_TD), dweight_D));
    });
  }
}

at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& h_TD, const at::Tensor& rstd_T,
                         const at::Tensor& weight_D, const at::Tensor& residual_TD,
                         const at::Tensor& dweight_D) {
  auto dh_TD = at::empty(h_TD.sizes(), h_TD.options());
  norm_backward_out(dh_TD, dy_TD, h_TD, rstd_T, weight_D, residual_TD, dweight_D);
  return dh_TD;
}

void rotate_(at::Tensor& x_TNH, const RotaryTable& table, bool inverse) {
  if (x_TNH.is_cpu()) return cpu_rows::rotate_(x_TNH, table, inverse);
  if (!cuda_rows::rotate_out(x_TNH, x_TNH, table, inverse)) {
    rotate_composed(x_TNH, x_TNH, table, inverse);
  }
}

at::Tensor rotate(const at::Tensor& x_TNH, const RotaryTable& table, bool inverse) {
  if (x_TNH.is_cpu()) {
    auto y_TNH = x_TNH.clone(at::MemoryFormat::Contiguous);
    cpu_rows::rotate_(y_TNH, table, inverse);
    return y_TNH;
  }
  auto y_TNH = at::empty(x_TNH.sizes(), x_TNH.options());
  if (cuda_rows::rotate_out(y_TNH, x_TNH, table, inverse)) return y_TNH;
  if (is_one_part(x_TNH)) return composed::rotate(x_TNH, table, inverse);
  rotate_composed(y_TNH, x_TNH, table, inverse);
  return y_TNH;
}

at::Tensor heads_as_rows(const at::Tensor& x_TNH) {
  return x_TNH.contiguous().view({-1, x_TNH.size(2)});
}

void norm_rotate_out(at::Tensor& y_TNH, at::Tensor* rstd_R, const at::Tensor& x_TNH,
                     const at::Tensor& weight_H, const RotaryTable& table, double eps) {
  if (!x_TNH.is_cpu()) {
    at::Tensor y = y_TNH.defined() ? y_TNH : at::empty(x_TNH.sizes(), x_TNH.options());
    if (cuda_rows::norm_rotate_out(y, rstd_R, x_TNH, weight_H.contiguous(), table, eps)) {
      y_TNH = y;
      return;
    }
  }
  const auto [rstd, y_RH] =
      normalize_rows(heads_as_rows(x_TNH), weight_H, eps, x_TNH.scalar_type());
  at::Tensor y = y_RH.view(x_TNH.sizes());
  rotate_(y, table, /*inverse=*/false);
  if (y_TNH.defined()) {
    y_TNH.copy_(y);
  } else {
    y_TNH = y;
  }
  if (rstd_R != nullptr) *rstd_R = rstd;
}

at::Tensor norm_rotate_backward(const at::Tensor& dy_TNH, const at::Tensor& x_TNH,
                                const at::Tensor& rstd_R, const at::Tensor& weight_H,
                                const RotaryTable& table, double eps, const at::Tensor& dweight_H) {
  if (!x_TNH.is_cpu()) {
    at::Tensor dx_TNH = at::empty(x_TNH.sizes(), x_TNH.options());
    if (cuda_rows::norm_rotate_backward_out(dx_TNH, dy_TNH, x_TNH, rstd_R, weight_H.contiguous(),
                                            table, eps, dweight_H)) {
      return dx_TNH;
    }
  }
  const at::Tensor dnormed_TNH = rotate(dy_TNH, table, /*inverse=*/true);
  const at::Tensor x_RH = heads_as_rows(x_TNH);
  const at::Tensor rstd = rstd_R.defined() ? rstd_R : reciprocal_rms(x_RH, eps);
  return norm_backward(heads_as_rows(dnormed_TNH), x_RH, rstd, weight_H, {}, dweight_H)
      .view(x_TNH.sizes());
}

void swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  if (gate_TI.is_cpu()) return cpu_rows::swiglu_out(out_TI, gate_TI, up_TI);
  if (!cuda_rows::gated_out(out_TI, gate_TI, up_TI, Gate::kSwiglu)) {
    for_composed_rows(gate_TI, [&](const auto& part) {
      part(out_TI).copy_(composed::swiglu(part(gate_TI), part(up_TI)));
    });
  }
}

void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI) {
  if (gate_TI.is_cpu()) return cpu_rows::swiglu_backward_(gate_TI, up_TI, dact_TI);
  if (!cuda_rows::gated_backward_(gate_TI, up_TI, dact_TI, Gate::kSwiglu)) {
    for_composed_rows(gate_TI, [&](const auto& part) {
      at::Tensor gate_CI = part(gate_TI), up_CI = part(up_TI), dact_CI = part(dact_TI);
      composed::swiglu_backward_(gate_CI, up_CI, dact_CI);
    });
  }
}

void geglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  if (gate_TI.is_cpu()) return cpu_rows::geglu_out(out_TI, gate_TI, up_TI);
  if (!cuda_rows::gated_out(out_TI, gate_TI, up_TI, Gate::kGeglu)) {
    for_composed_rows(gate_TI, [&](const auto& part) {
      part(out_TI).copy_(composed::geglu(part(gate_TI), part(up_TI)));
    });
  }
}

void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI) {
  if (gate_TI.is_cpu()) return cpu_rows::geglu_backward_(gate_TI, up_TI, dact_TI);
  if (!cuda_rows::gated_backward_(gate_TI, up_TI, dact_TI, Gate::kGeglu)) {
    for_composed_rows(gate_TI, [&](const auto& part) {
      at::Tensor gate_CI = part(gate_TI), up_CI = part(up_TI), dact_CI = part(dact_TI);
      composed::geglu_backward_(gate_CI, up_CI, dact_CI);
    });
  }
}

void clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit) {
  if (gate_TI.is_cpu()) return cpu_rows::clamped_swiglu_out(out_TI, gate_TI, up_TI, slope, limit);
  if (cuda_rows::clamped_swiglu_out(out_TI, gate_TI, up_TI, slope, limit)) return;
  for_composed_rows(gate_TI, [&](const auto& part) {
    part(out_TI).copy_(composed::clamped_swiglu(part(gate_TI), part(up_TI), slope, limit));
  });
}

void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit) {
  if (gate_TI.is_cpu()) {
    return cpu_rows::clamped_swiglu_backward_(gate_TI, up_TI, dact_TI, slope, limit);
  }
  if (cuda_rows::clamped_swiglu_backward_(gate_TI, up_TI, dact_TI, slope, limit)) return;
  for_composed_rows(gate_TI, [&](const auto& part) {
    at::Tensor gate_CI = part(gate_TI), up_CI = part(up_TI), dact_CI = part(dact_TI);
    composed::clamped_swiglu_backward_(gate_CI, up_CI, dact_CI, slope, limit);
  });
}

void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T) {
  if (logits_TV.is_cpu()) return cpu_rows::log_sum_exp_rows(logits_TV, labels_T, lse_T, picked_T);
  if (!cuda_rows::log_sum_exp_rows(logits_TV, labels_T, lse_T, picked_T)) {
    for_composed_rows(logits_TV, [&](const auto& part) {
      composed::log_sum_exp_rows(part(logits_TV), part(labels_T), part(lse_T), part(picked_T));
    });
  }
}

void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T) {
  if (logits_TV.is_cpu()) {
    return cpu_rows::cross_entropy_gradient_(logits_TV, labels_T, lse_T, scale_T);
  }
  if (!cuda_rows::cross_entropy_gradient_out(logits_TV, logits_TV, labels_T, lse_T, scale_T)) {
    composed::cross_entropy_gradient_(logits_TV, labels_T, lse_T, scale_T);
  }
}

at::Tensor cross_entropy_gradient(at::Tensor& logits_TV, const at::Tensor& labels_T,
                                  const at::Tensor& lse_T, const at::Tensor& scale_T,
                                  at::ScalarType dtype) {
  if (!logits_TV.is_cpu() && dtype != logits_TV.scalar_type()) {
    auto out_TV = at::empty(logits_TV.sizes(), logits_TV.options().dtype(dtype));
    if (cuda_rows::cross_entropy_gradient_out(out_TV, logits_TV, labels_T, lse_T, scale_T)) {
      return out_TV;
    }
  }
  cross_entropy_gradient_(logits_TV, labels_T, lse_T, scale_T);
  return logits_TV.to(dtype);
}

}  // namespace longspan
