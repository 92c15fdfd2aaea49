// A part of a row's gated delta rule by kernels and batched gemms over all heads and chunks, with a
// backward by hand (the WY form of arXiv 2406.06484, with decays). Products of heads, of states and
// of updates have operands in v's dtype, as in flash-linear-attention's chunk kernels, and fp32
// sums. The states between chunks, q k^T, k k^T and the inverse are computed in fp32. The letters
// of shapes are those of cuda_delta_rule.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/cuda_delta_rule.h"

namespace longspan {

/// Writes the output, in v's dtype. `state_NKV`, in fp32: the state before the part, replaced by
/// the state behind it.
void part_forward(const DeltaPart& in, const at::Tensor& state_NKV, const at::Tensor& out_SNV);

/// Writes the gradients of the part's inputs. Computes the forward again. `state_NKV`: as in the
/// forward. `dstate_NKV`: the gradient of the state behind the part, replaced by that of the state
/// before it. `dout_SNV`: contiguous, in v's dtype.
void part_backward(const DeltaPart& in, const at::Tensor& state_NKV, const at::Tensor& dstate_NKV,
                   const at::Tensor& dout_SNV, const cuda_rows::PartGradients& to);

}  // namespace longspan
