#include "longspan/models/head_norm.h"

#include <ATen/ATen.h>

#include <utility>

#include "longspan/models/fused_rows.h"
#include "longspan/models/linear.h"

namespace longspan {
namespace {

// Every head of every row is a row to the kernels.
at::Tensor rows(const at::Tensor& x_TNH) { return x_TNH.contiguous().view({-1, x_TNH.size(2)}); }

}  // namespace

at::Tensor HeadNorm::forward(const at::Tensor& x_TNH) {
  if (!weight_H_.defined()) return x_TNH;
  x_TNH_ = x_TNH;
  rstd_R_ = reciprocal_rms(rows(x_TNH), eps_);
  return scale_rows(rows(x_TNH), rstd_R_, weight_H_, x_TNH.scalar_type()).view(x_TNH.sizes());
}

at::Tensor HeadNorm::backward(const at::Tensor& dy_TNH) {
  if (!weight_H_.defined()) return dy_TNH;
  const at::Tensor dweight_H =
      weight_H_.requires_grad() ? at::zeros(weight_H_.sizes(), rstd_R_.options()) : at::Tensor();
  const at::Tensor x_TNH = std::exchange(x_TNH_, {});
  const at::Tensor dx_RH =
      norm_backward(rows(dy_TNH), rows(x_TNH), rstd_R_, weight_H_, {}, dweight_H);
  if (dweight_H.defined()) add_gradient(weight_H_, dweight_H);
  return dx_RH.view(dy_TNH.sizes());
}

}  // namespace longspan
