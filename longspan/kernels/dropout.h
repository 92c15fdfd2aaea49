// Dropout whose choice depends on what a token is, not on where or when it is computed.
// T: rows, I: columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Drops an element of x_TI with probability p, by a hash of `seed`, its row's key and its column,
/// and scales the others by 1 / (1 - p). Forward, recomputation and backward thus agree without
/// anything being kept, and so do runs
/// in which another number of processes shares the rows. Without keys it does
/// nothing.
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
