// 8-bit dynamic block-wise quantization (8-bit Optimizers via Block-wise Quantization, arXiv
// 2110.02861, sections 2.1 and 2.2). No torch.
#pragma once

#include <array>
#include <cstdint>

namespace longspan {

/// Elements that share a scale.
inline constexpr int64_t kQuantizationBlock = 256;

/// Returns the 256 values of the dynamic data type, ascending, at most 1: the values have seven
/// decimal exponents, and larger exponents have more fractions. Signed values lie in (-1, 1],
/// unsigned values in [0, 1].
const std::array<float, 256>& dynamic_values(bool is_signed);

/// Sets scale to the element of largest magnitude, with its sign, so that this element is stored
/// exactly. Sets codes[i] to the value nearest to x[i] / scale. n <= kQuantizationBlock. Quantizing
/// restored elements gives the same scale and codes.
void quantize_block(const float* x, int64_t n, bool is_signed, uint8_t* codes, float* scale);
void restore_block(const uint8_t* codes, float scale, int64_t n, bool is_signed, float* x);

}  // namespace longspan
