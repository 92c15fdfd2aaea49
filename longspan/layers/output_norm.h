// A norm of a sublayer's output, before it is added to the hidden states. C: rows, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/norm_kind.h"

namespace longspan {

struct OutputNorm {
  at::Tensor weight_D;  // undefined: no norm
  NormKind kind;
  double eps;

  bool defined() const { return weight_D.defined(); }
  /// Writes h + norm(y) into sum_CD, which may be h_CD.
  void add_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& y_CD) const;
  /// Returns d loss / d y, in the dtype of y. Adds the weight's gradient to dweight_D
  /// (zeros_for_norm()) where dweight_D is defined.
  at::Tensor backward(const at::Tensor& dsum_CD, const at::Tensor& y_CD,
                      const at::Tensor& dweight_D) const;
};

}  // namespace longspan
