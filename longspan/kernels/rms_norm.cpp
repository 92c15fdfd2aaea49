#include "longspan/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <stdexcept>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {

at::Tensor zeros_for_norm(const at::Tensor& weight_D, const at::TensorOptions& like) {
  const bool wide = c10::typeMetaToScalarType(like.dtype()) == at::kDouble;
  return weight_D.requires_grad()
             ? at::zeros(weight_D.sizes(), like.dtype(wide ? at::kDouble : at::kFloat))
             : at::Tensor();
}

at::Tensor norm_factors(const at::Tensor& weight_D, NormKind kind) {
  c10::NoGradGuard no_grad;
  switch (kind) {
    case NormKind::kWeight:
      return weight_D;
    case NormKind::kOnePlusWeight:
      return weight_D.to(arithmetic_dtype(weight_D.scalar_type())).add(1);
  }
  throw std::logic_error("no such norm");
}

at::Tensor rms_norm(const at::Tensor& h_TD, const at::Tensor& weight_D, NormKind kind, double eps,
                    at::ScalarType dtype) {
  at::Tensor rstd_T, y_TD;
  {
    c10::NoGradGuard no_grad;
    const NormalizedRows rows = normalize_rows(h_TD, norm_factors(weight_D, kind), eps, dtype);
    rstd_T = rows.rstd_T;
    y_TD = rows.y_TD;
  }
  if (needs_backward({h_TD}, {weight_D})) {
    y_TD = attach_backward(
        {y_TD}, {h_TD}, {weight_D},
        [h_TD = h_TD.detach(), rstd_T, weight_D, kind](std::vector<at::Tensor> gradients) {
          const auto dweight_D = zeros_for_norm(weight_D, rstd_T.options());
          auto dh_TD = norm_backward(gradients[0], h_TD, rstd_T, norm_factors(weight_D, kind), {},
                                     dweight_D);
          if (dweight_D.defined()) add_gradient(weight_D, dweight_D);
          return std::vector<at::Tensor>{dh_TD};
        })[0];
  }
  return y_TD;
}

}  // namespace longspan
