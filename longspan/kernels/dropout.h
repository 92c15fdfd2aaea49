// Dropout whose choice depends on what a token is, not on where or when it is computed.
// T: rows, I: columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Drops each element of x_TI with probability p, by a hash of `seed`, the key of its row and its
/// column, and scales the others by 1 / (1 - p). So forward, recomputation and backward drop the
/// same elements, and nothing is saved for that. Runs on other numbers of processes drop the same
/// elements, too. Without keys nothing is dropped.
struct Dropout {
  double p = 0.0;
  uint64_t seed = 0;
  at::Tensor keys_T;  // int64

  bool active() const { return p > 0.0 && keys_T.defined(); }
  at::Tensor apply(const at::Tensor& x_TI) const;
};

/// A seed for one use among many: of a layer, of a step.
uint64_t mix_seed(uint64_t seed, uint64_t number);

}  // namespace longspan
