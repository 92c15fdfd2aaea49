// The update of AdamW8bit on a GPU: by one kernel (cuda_adamw_8bit.h), or, where no kernel takes
// the tensors, by ATen's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "longspan/optim/moments_8bit.h"

namespace longspan {

/// Updates values [n] and moments, all on one device.
void update_8bit_on_gpu(const Moments8bit& moments, const at::Tensor& gradient_n,
                        const at::Tensor& values_n, const Factors8bit& factors);

/// Elements of one pass of ATen's operators. Temporaries have about ten times this number of fp32
/// elements; the memory account does not count them.
inline constexpr int64_t kNumbersAtOnce8bit = int64_t{1} << 20;

/// As update_8bit_on_gpu(), by ATen's operators, `numbers_at_once` elements at a time: a multiple
/// of kQuantizationBlock.
void update_8bit_composed(const Moments8bit& moments, const at::Tensor& gradient_n,
                          const at::Tensor& values_n, const Factors8bit& factors,
                          int64_t numbers_at_once = kNumbersAtOnce8bit);

}  // namespace longspan
