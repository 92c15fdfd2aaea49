// Dropout and noise that depend on the identity of a token only, not on the process or the pass. T:
// rows, I: columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Drops each element of x_TI with probability p, and scales the others by 1 / (1 - p). A hash of
/// `seed`, the row's key and the column selects the dropped elements. So forward, recomputation and
/// backward drop the same elements, and no mask is saved. The dropped elements do not depend on the
/// number of processes. Without keys nothing is dropped.
struct Dropout {
  double p = 0.0;
  uint64_t seed = 0;
  at::Tensor keys_T;  // int64

  bool active() const { return p > 0.0 && keys_T.defined(); }
  at::Tensor apply(const at::Tensor& x_TI) const;
};

/// Adds a random number to each element of x_TI, in place: uniform in [-bound, bound), with the
/// bound of the element's row. The number comes from a hash, as in Dropout. keys_T: int64.
/// bounds_T: fp64.
void add_uniform_noise_(at::Tensor x_TI, const at::Tensor& keys_T, const at::Tensor& bounds_T,
                        uint64_t seed);

/// Returns a seed for one of several uses, for example for a layer or a step.
uint64_t mix_seed(uint64_t seed, uint64_t number);

}  // namespace longspan
