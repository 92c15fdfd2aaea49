// MXFP4 (OCP Microscaling Formats, MX 1.0): 4-bit floats in groups of 32; the scale of a group is a
// power of two. gpt-oss stores expert matrices in MXFP4.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longspan {

/// Elements that share a scale, and the bytes of their block: two elements per byte.
inline constexpr int64_t kMxfp4Group = 32, kMxfp4Bytes = kMxfp4Group / 2;

/// Shapes of the blocks [count, num_out, groups, kMxfp4Bytes] and the scales [count, num_out,
/// groups] of `count` matrices [num_out, num_in].
std::vector<int64_t> mxfp4_blocks_shape(int64_t count, int64_t num_out, int64_t num_in);
std::vector<int64_t> mxfp4_scales_shape(int64_t count, int64_t num_out, int64_t num_in);

/// Returns the numbers in fp32, [..., kMxfp4Group]. Takes blocks [..., kMxfp4Bytes] and scales
/// [...], both uint8. The lower half of a byte comes first, and a scale s is 2^(s - 127). The
/// result equals convert_moe_packed_tensors of transformers bit for bit, also after rounding to
/// bf16.
at::Tensor read_mxfp4(const at::Tensor& blocks, const at::Tensor& scales);

}  // namespace longspan
