#include "longspan/checkpoint/fp8_blocks.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace longspan {
namespace {

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace

std::vector<int64_t> fp8_scales_shape(int64_t num_rows, int64_t num_columns, int64_t block_rows,
                                      int64_t block_columns) {
  return {blocks_of(num_rows, block_rows), blocks_of(num_columns, block_columns)};
}

void scale_fp8_(const at::Tensor& numbers_RC, const at::Tensor& scales, int64_t block_rows,
                int64_t block_columns) {
  const int64_t R = numbers_RC.size(0), C = numbers_RC.size(1);
  TORCH_CHECK(scales.sizes() == fp8_scales_shape(R, C, block_rows, block_columns),
              "scales of a matrix [", R, ", ", C, "] have shape ", scales.sizes());
  for (int64_t block = 0; block < scales.size(0); ++block) {
    const int64_t begin = block * block_rows;
    const at::Tensor of_columns_C =
        scales.select(0, block).repeat_interleave(block_columns).narrow(0, 0, C);
    numbers_RC.narrow(0, begin, std::min(block_rows, R - begin)).mul_(of_columns_C);
  }
}

}  // namespace longspan
