// Matrices whose rows are in 8 bits, and products that round their inputs to 8 bits too (LLM.int8,
// arXiv 2208.07339), as bitsandbytes computes them. T: tokens, I: input dim, O: output dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// An element of the matrix is code * scale / 127.
struct EightBitRows {
  at::Tensor codes_OI;  // int8
  at::Tensor scales_O;  // fp32

  bool defined() const { return codes_OI.defined(); }
  EightBitRows rows(int64_t begin, int64_t count) const {
    return {codes_OI.narrow(0, begin, count), scales_O.narrow(0, begin, count)};
  }
};

/// Returns the packed matrix, EightBitLayout::bytes bytes on the CPU. `values_OI`: fp32 or bf16,
/// finite in fp16, on the CPU. A row's scale is its largest magnitude in fp16.
at::Tensor pack_eight_bits(const at::Tensor& values_OI);

/// Returns a packed matrix as tensors over the storage of `bytes`, from byte `begin` on. The
/// storage may have no memory yet.
EightBitRows eight_bit_rows(const at::Tensor& bytes, int64_t begin, int64_t num_rows,
                            int64_t num_columns);

/// Writes the values into `values_OI` (fp32 or bf16), on the device of both, each rounded once.
void unpack_eight_bits_out(const at::Tensor& values_OI, const EightBitRows& matrix);

/// Writes x W^T into y, without gradients. Each token's numbers are rounded to 8 bits of the
/// largest magnitude among them, in fp16; numbers of at least 6 are left out of that, and multiply
/// W in the dtype of x. Which numbers these are depends on the token alone, so the result does not
/// depend on the other tokens of the call. Sums of products of codes are exact.
void eight_bit_product_out(const at::Tensor& y_TO, const at::Tensor& x_TI,
                           const EightBitRows& matrix);

/// The sums of products of codes, [T, O], in two exact ways. `codes_TI`: int8.
enum class CodeProduct {
  kBytes,   ///< int8 instructions: a GPU, or a CPU for which bytes_multiply()
  kFloats,  ///< fp32 gemms over few columns, whose sums are whole numbers below 2^24
};
at::Tensor code_product(const at::Tensor& codes_TI, const at::Tensor& codes_OI, CodeProduct way);
/// True if this CPU multiplies bytes fast, and torch's kernels do so without saturation.
bool bytes_multiply();

}  // namespace longspan
