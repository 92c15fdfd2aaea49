// Numbers in 8 bits each: dynamic, block-wise quantization (8-bit Optimizers via Block-wise
// Quantization, arXiv 2110.02861, sections 2.1 and 2.2). No torch.
#pragma once

#include <array>
#include <cstdint>

namespace longspan {

/// Numbers that share a scale.
inline constexpr int64_t kQuantizationBlock = 256;

/// The 256 values of the dynamic data type, ascending, at most 1: seven decimal exponents, of which
/// the largest has the most fractions. Signed ones lie in (-1, 1], unsigned ones in [0, 1].
const std::array<float, 256>& dynamic_values(bool is_signed);

/// Sets scale to the number of the largest magnitude, with its sign, so that this number is
/// stored exactly, and codes[i] to the value nearest to x[i] / scale. n <= kQuantizationBlock.
/// Quantizing what was restored gives the same scale and codes again.
void quantize_block(const float* x, int64_t n, bool is_signed, uint8_t* codes, float* scale);
void restore_block(const uint8_t* codes, float scale, int64_t n, bool is_signed, float* x);

}  // namespace longspan
