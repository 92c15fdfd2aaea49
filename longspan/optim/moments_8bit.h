// Moments of AdamW in 8 bits (block_quantization.h), as tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

/// Constants of one update.
struct Factors8bit {
  float beta1, beta2, epsilon, decay, rate, root_correction2;
};

/// The moments of n elements: codes [n] uint8, and fp32 scales of the blocks.
struct Moments8bit {
  at::Tensor first_codes, first_scales, second_codes, second_scales;
};

/// Updates values [n] and moments, all on the CPU, in fp32, whatever the dtype of the values. The
/// gradient has the dtype of the values.
void update_8bit_on_cpu(const Moments8bit& moments, const at::Tensor& gradient_n,
                        const at::Tensor& values_n, const Factors8bit& factors);

/// Returns a moment in fp32. All tensors are on the CPU, as those of quantize_moment().
at::Tensor restored_moment(const at::Tensor& codes, const at::Tensor& scales, bool is_signed);
/// Writes codes and scales of a moment.
void quantize_moment(const at::Tensor& x, bool is_signed, at::Tensor& codes, at::Tensor& scales);

}  // namespace longspan
