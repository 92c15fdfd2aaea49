// A norm of a sublayer's output, before it is added to the hidden states.
// C: rows, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/norm_kind.h"

namespace longspan {

struct OutputNorm {
  at::Tensor weight_D;  // undefined: there is none
  NormKind kind;
  double eps;

  bool defined() const { return weight_D.defined(); }
  /// Writes h + norm(y) into sum_CD, which may be h_CD.
  void add_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& y_CD) const;
  /// d loss / d (h + norm(y)) -> d loss / d y, in the dtype of y. The gradient of the weight is
  /// added to dweight_D (zeros_for_norm()) where that is defined.
  at::Tensor backward(const at::Tensor& dsum_CD, const at::Tensor& y_CD,
                      const at::Tensor& dweight_D) const;
};

}  // namespace longspan
