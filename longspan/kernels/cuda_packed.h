// Unpacking of matrices in 4 bits as GPU kernels (cuda/rows/packed.cu). The results have the bits
// of four_bits.h and grouped_bits.h. A function returns false where there is no kernel for its
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/packed_format.h"

namespace longspan::cuda_rows {

/// `values`: as many as the layout has, fp32 or bf16. `numbers` [16] and `scale_numbers` [256]: of
/// the codes and of 8-bit scales, fp32, on the device.
bool unpack_four_bits(const at::Tensor& values, const FourBitLayout& layout,
                      const at::Tensor& packed, const at::Tensor& numbers,
                      const at::Tensor& scale_numbers);

/// `values`: [rows, columns], fp32 or bf16.
bool unpack_grouped_bits(const at::Tensor& values, const GroupedLayout& layout,
                         const at::Tensor& packed);

}  // namespace longspan::cuda_rows
