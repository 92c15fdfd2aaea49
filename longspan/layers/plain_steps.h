// Steps of layers in ATen's operations, with autograd's own gradients: what plain versions of
// layers (TokenMixer::plain) are made of. T: tokens, N: heads, M: kv heads, H: numbers of a head,
// K: of a query's and a key's, V: of a value's.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/data/packing.h"
#include "longspan/kernels/rope.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/norm_kind.h"

namespace longspan {

/// An RMSNorm over the last dim.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps);

/// The first numbers of heads rotated by the table's angles, as many as it has.
at::Tensor plain_rotation(const at::Tensor& x_TNH, const RotaryTable& table);

/// Softmax attention over a row, [T, N, V], where each document is by itself. k_TMK and v_TMV have
/// as many heads as q_TNK, or a divisor of that. sinks_N: undefined where the spec has none.
at::Tensor plain_softmax_attention(const at::Tensor& q_TNK, const at::Tensor& k_TMK,
                                   const at::Tensor& v_TMV, const AttentionSpec& attention,
                                   const Packing& packing, const at::Tensor& sinks_N);

}  // namespace longspan
