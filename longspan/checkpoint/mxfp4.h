// MXFP4 (OCP Microscaling Formats, MX 1.0): numbers of four bits, of which 32 share a power of two.
// gpt-oss's folders have the matrices of their experts in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longspan {

/// Numbers that share a power of two: two in each byte of a block.
inline constexpr int64_t kMxfp4Group = 32, kMxfp4Bytes = kMxfp4Group / 2;

/// Shapes of blocks and scales of `count` matrices [num_out, num_in]: [count, num_out, groups,
/// kMxfp4Bytes] and [count, num_out, groups].
std::vector<int64_t> mxfp4_blocks_shape(int64_t count, int64_t num_out, int64_t num_in);
std::vector<int64_t> mxfp4_scales_shape(int64_t count, int64_t num_out, int64_t num_in);

/// blocks [..., kMxfp4Bytes] and scales [...], both uint8 -> the numbers in fp32, [...,
/// kMxfp4Group]: the lower half of a byte comes first, and a scale of s is 2^(s - 127). To the bit
/// what convert_moe_packed_tensors of transformers gives, in bf16 too where it is rounded to that.
at::Tensor read_mxfp4(const at::Tensor& blocks, const at::Tensor& scales);

}  // namespace longspan
