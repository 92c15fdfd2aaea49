// Unpacks matrices in 4 bits with a scale and a zero for some columns of a row (GPTQ, AWQ).
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/packed_format.h"
#include "longspan/spec/word_order.h"

namespace longspan {

/// Writes the codes of a matrix into bytes [rows, columns / 2] of the CPU, which are zeros: two
/// codes in a byte, the first in the lower half. `words`: int32, on the CPU.
void codes_from_words_out(const at::Tensor& bytes, const WordOrder& order, const at::Tensor& words);

/// Writes the values of a packed matrix (GroupedLayout) into `values` [rows, columns] (contiguous,
/// fp32 or bf16), on the device of both. A value is its scale times (code - zero) in fp32, rounded
/// once.
void unpack_grouped_bits_out(const at::Tensor& values, const GroupedBits& format,
                             const at::Tensor& packed);
/// The same by ATen's operators, for a GPU without kernels; also on a CPU.
void unpack_grouped_bits_by_operators_out(const at::Tensor& values, const GroupedBits& format,
                                          const at::Tensor& packed);

}  // namespace longspan
