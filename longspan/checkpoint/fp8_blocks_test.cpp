#include "longspan/checkpoint/fp8_blocks.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace longspan {
namespace {

TEST_CASE("fp8: each number times the scale of its block, where the last blocks are cut") {
  using Shape = std::vector<int64_t>;
  CHECK(fp8_scales_shape(130, 259, 128, 128) == Shape{2, 3});
  CHECK(fp8_scales_shape(128, 256, 128, 128) == Shape{1, 2});
  CHECK(fp8_scales_shape(1, 7, 2, 3) == Shape{1, 3});
  for (const auto& [rows, columns, block_rows, block_columns] : std::vector<std::array<int64_t, 4>>{
           {130, 259, 128, 128}, {128, 128, 128, 128}, {5, 7, 2, 3}}) {
    CAPTURE(rows);
    // All bytes that are numbers, repeated.
    const at::Tensor bytes =
        at::arange(rows * columns).remainder(127).to(at::kByte).view({rows, columns});
    const at::Tensor numbers = bytes.view(at::kFloat8_e4m3fn).to(at::kFloat);
    const at::Tensor scales =
        at::rand(fp8_scales_shape(rows, columns, block_rows, block_columns)) + 0.5;
    at::Tensor read = numbers.clone();
    scale_fp8_(read, scales, block_rows, block_columns);
    bool same = true;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        same &=
            read[r][c].item<float>() ==
            numbers[r][c].item<float>() * scales[r / block_rows][c / block_columns].item<float>();
      }
    }
    CHECK(same);
    if (rows * columns >= 127) CHECK(numbers.max().item<float>() == 448.0F);
  }
  CHECK_THROWS(scale_fp8_(at::zeros({3, 3}), at::ones({1, 2}), 2, 2));
}

}  // namespace
}  // namespace longspan
