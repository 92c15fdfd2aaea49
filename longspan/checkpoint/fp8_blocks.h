// Matrices in fp8 (e4m3) with a scale for each block (DeepSeek-V3, arXiv 2412.19437, section
// 3.3.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// Suffix of the name of a matrix's tensor of scales.
inline constexpr const char* kFp8Scales = "_scale_inv";

/// Returns [blocks of rows, blocks of columns] of a matrix [num_rows, num_columns]. The last blocks
/// may be partial.
std::vector<int64_t> fp8_scales_shape(int64_t num_rows, int64_t num_columns, int64_t block_rows,
                                      int64_t block_columns);

/// Multiplies each number by the scale of its block, in place. numbers_RC: the fp8 values, as fp32.
/// scales: fp32, of the shape fp8_scales_shape().
void scale_fp8_(const at::Tensor& numbers_RC, const at::Tensor& scales, int64_t block_rows,
                int64_t block_columns);

}  // namespace longspan
