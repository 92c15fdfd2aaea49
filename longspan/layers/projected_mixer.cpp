#include "longspan/layers/projected_mixer.h"

#include <ATen/ATen.h>

namespace longspan {

void ProjectedMixer::output_out(at::Tensor sum_CD, const at::Tensor& h_CD,
                                const at::Tensor& mixed_C, const RowRange& rows) const {
  output_.for_rows(rows.begin, rows.size)
      .add_forward_out(std::move(sum_CD), h_CD, mixed_C.flatten(1));
}

void ProjectedMixer::output_backward(const at::Tensor& dsum_CD, const at::Tensor& mixed_C,
                                     const RowRange& rows, at::Tensor dmixed_C) const {
  const Linear output = output_.for_rows(rows.begin, rows.size);
  output.add_gradients(dsum_CD, mixed_C.flatten(1));
  if (dmixed_C.defined()) output.input_gradient_out(dmixed_C.flatten(1), dsum_CD);
}

}  // namespace longspan
