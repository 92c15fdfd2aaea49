// What a model knows of attention. T: this rank's tokens, N: query heads, M: kv heads, H: head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/data/packing.h"

namespace longspan {

/// Causal attention within the documents of a packed row, for the tokens that this process holds.
/// Differentiable by ATen's autograd. Scale is 1 / sqrt(H). N is a multiple of M (grouped-query
/// attention: query head n uses kv head n / (N / M)).
class Attention {
 public:
  virtual ~Attention() = default;
  /// q_TNH, k_TMH, v_TMH (rotary embedding already applied) -> out_TNH, in the dtype of q.
  virtual at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                            const at::Tensor& v_TMH, const Packing& packing) = 0;
};

}  // namespace longspan
