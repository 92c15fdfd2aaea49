// Packs matrices into 4 bits and unpacks them, bit for bit as bitsandbytes does on CPUs (QLoRA,
// arXiv 2305.14314).
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/four_bits.h"

namespace longspan {

/// Returns the packed matrix, FourBitLayout::bytes bytes on the CPU. `values`: fp32 or bf16,
/// contiguous, on the CPU; the order of its elements counts, not its shape.
at::Tensor pack_four_bits(const FourBits& format, const at::Tensor& values);

/// Writes the values of a packed matrix into `values` (contiguous, fp32 or bf16), on the device of
/// both. A value is its code's number times the block's scale in fp32, rounded once.
void unpack_four_bits_out(const at::Tensor& values, const FourBits& format,
                          const at::Tensor& packed);
/// The same by ATen's operators, for a GPU without kernels; also on a CPU.
void unpack_four_bits_by_operators_out(const at::Tensor& values, const FourBits& format,
                                       const at::Tensor& packed);

}  // namespace longspan
