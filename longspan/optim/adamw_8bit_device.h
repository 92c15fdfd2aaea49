// The update of AdamW8bit in ATen operators, for devices other than the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Constants of one update.
struct Factors8bit {
  float beta1, beta2, epsilon, decay, rate, root_correction2;
};

/// The moments of n elements: codes [n] uint8, and fp32 scales of the blocks.
struct Moments8bit {
  at::Tensor first_codes, first_scales, second_codes, second_scales;
};

/// Elements of one pass. Temporaries have about ten times this number of fp32 elements.
inline constexpr int64_t kNumbersAtOnce8bit = int64_t{1} << 24;

/// Updates values [n] and moments, all on one device, `numbers_at_once` elements at a time.
/// `numbers_at_once` must be a multiple of kQuantizationBlock.
void update_on_device(const Moments8bit& moments, const at::Tensor& gradient_n,
                      const at::Tensor& values_n, const Factors8bit& factors,
                      int64_t numbers_at_once = kNumbersAtOnce8bit);

}  // namespace longspan
