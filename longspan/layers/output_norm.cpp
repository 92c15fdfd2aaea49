#include "longspan/layers/output_norm.h"

#include <ATen/ATen.h>

#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/rms_norm.h"

namespace longspan {

void OutputNorm::add_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& y_CD) const {
  add_normalized_out(sum_CD, h_CD, y_CD, norm_factors(weight_D, kind), eps);
}

at::Tensor OutputNorm::backward(const at::Tensor& dsum_CD, const at::Tensor& y_CD,
                                const at::Tensor& dweight_D) const {
  return norm_backward(dsum_CD, y_CD, reciprocal_rms(y_CD, eps), norm_factors(weight_D, kind), {},
                       dweight_D);
}

}  // namespace longspan
