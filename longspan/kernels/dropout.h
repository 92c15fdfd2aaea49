// Dropout that depends on the identity of a token, not on where or when it is computed. T: rows, I:
// columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Drops each element of x_TI with probability p, and scales the others by 1 / (1 - p). A hash of
/// `seed`, the row's key and the column selects the dropped elements. So forward, recomputation and
/// backward drop the same elements, and no mask is saved. Runs with other numbers of processes drop
/// the same elements too. Without keys nothing is dropped.
struct Dropout {
  double p = 0.0;
  uint64_t seed = 0;
  at::Tensor keys_T;  // int64

  bool active() const { return p > 0.0 && keys_T.defined(); }
  at::Tensor apply(const at::Tensor& x_TI) const;
};

/// Returns a seed for one of several uses, for example for a layer or a step.
uint64_t mix_seed(uint64_t seed, uint64_t number);

}  // namespace longspan
