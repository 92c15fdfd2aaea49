// Steps of plain versions of layers (TokenMixer::plain) in ATen operations, with autograd's
// gradients. Each step takes parameters in their dtype, reads them by as_input()
// (kernels/linear.h), and returns the dtype of x. T: tokens, I: input dim, O: output dim, N: heads,
// M: kv heads, H: elements of a head, K: elements of a head of queries or keys, V: elements of a
// head of values.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/linear.h"
#include "longspan/kernels/rope.h"
#include "longspan/rows/packing.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/norm_kind.h"

namespace longspan {

/// Applies the linear layer with its bias and its adapter. The dropout has keys for the rows of
/// x_TI. Throws UserError where x_TI has other rows.
at::Tensor plain_linear(const Linear& linear, const at::Tensor& x_TI);

/// An RMSNorm over the last dim, in fp32, or in fp64 where x is fp64.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps);

/// Rotates the first numbers of heads by the table's angles.
at::Tensor plain_rotation(const at::Tensor& x_TNH, const RotaryTable& table);

/// Softmax attention within each document of a row, [T, N, V]. The number of heads of k_TMK and
/// v_TMV divides q_TNK's. sinks_N: undefined where the spec has none.
at::Tensor plain_softmax_attention(const at::Tensor& q_TNK, const at::Tensor& k_TMK,
                                   const at::Tensor& v_TMV, const AttentionSpec& attention,
                                   const Packing& packing, const at::Tensor& sinks_N);

}  // namespace longspan
