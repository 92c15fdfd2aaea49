// Numbers in fp8 (e4m3) that share a scale by blocks (DeepSeek-V3, arXiv 2412.19437,
// section 3.3.2), as its folders have most of their matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// What the tensor of a matrix's scales is called behind the name of the matrix.
inline constexpr const char* kFp8Scales = "_scale_inv";

/// [blocks of rows, blocks of columns] of a matrix [num_rows, num_columns], whose last blocks may
/// be cut.
std::vector<int64_t> fp8_scales_shape(int64_t num_rows, int64_t num_columns, int64_t block_rows,
                                      int64_t block_columns);

/// numbers_RC in fp32 as they lie in fp8, times the scale of their block: in place. scales: of the
/// shape above, in fp32.
void scale_fp8_(const at::Tensor& numbers_RC, const at::Tensor& scales, int64_t block_rows,
                int64_t block_columns);

}  // namespace longspan
