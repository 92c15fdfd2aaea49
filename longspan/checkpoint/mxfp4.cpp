#include "longspan/checkpoint/mxfp4.h"

#include <ATen/ATen.h>

namespace longspan {
namespace {

constexpr int64_t kExponentBias = 127;

/// All values of a sign bit, two exponent bits and one mantissa bit.
at::Tensor all_values() {
  return at::tensor({0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F, -1.0F, -1.5F,
                     -2.0F, -3.0F, -4.0F, -6.0F});
}

}  // namespace

std::vector<int64_t> mxfp4_blocks_shape(int64_t count, int64_t num_out, int64_t num_in) {
  return {count, num_out, num_in / kMxfp4Group, kMxfp4Bytes};
}

std::vector<int64_t> mxfp4_scales_shape(int64_t count, int64_t num_out, int64_t num_in) {
  return {count, num_out, num_in / kMxfp4Group};
}

at::Tensor read_mxfp4(const at::Tensor& blocks, const at::Tensor& scales) {
  TORCH_CHECK(blocks.scalar_type() == at::kByte && scales.scalar_type() == at::kByte &&
                  blocks.size(-1) == kMxfp4Bytes &&
                  blocks.sizes().slice(0, scales.dim()) == scales.sizes(),
              "blocks and scales of MXFP4 are bytes, of which a block has ", kMxfp4Bytes);
  // The two values of every byte.
  const at::Tensor values = all_values();
  const at::Tensor bytes = at::arange(256, at::kLong);
  const at::Tensor pairs = at::stack(
      {values.index_select(0, bytes.remainder(16)), values.index_select(0, bytes.div(16, "floor"))},
      1);
  std::vector<int64_t> shape = scales.sizes().vec();
  shape.push_back(kMxfp4Group);
  const at::Tensor numbers = pairs.index_select(0, blocks.reshape({-1}).to(at::kLong)).view(shape);
  return at::ldexp(numbers, (scales.to(at::kInt) - kExponentBias).unsqueeze(-1));
}

}  // namespace longspan
