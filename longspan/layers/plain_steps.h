// Steps of layers in ATen's operations, with autograd's own gradients: what plain versions of
// layers (TokenMixer::plain) are made of. Each takes parameters as the layer holds them, reads them
// by as_input() (kernels/linear.h), and gives the dtype of x. T: tokens, I: input dim, O: output
// dim, N: heads, M: kv heads, H: numbers of a head, K: of a query's and a key's, V: of a value's.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/data/packing.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/rope.h"
#include "longspan/spec/attention_spec.h"
#include "longspan/spec/norm_kind.h"

namespace longspan {

/// The linear layer with its bias and its adapter, whose dropout is that of the rows of x_TI: those
/// that the linear layer was given keys of. Throws UserError where they are others.
at::Tensor plain_linear(const Linear& linear, const at::Tensor& x_TI);

/// An RMSNorm over the last dim, computed in fp32, or in fp64 where x is.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps);

/// The first numbers of heads rotated by the table's angles, as many as it has.
at::Tensor plain_rotation(const at::Tensor& x_TNH, const RotaryTable& table);

/// Softmax attention over a row, [T, N, V], where each document is by itself. k_TMK and v_TMV have
/// as many heads as q_TNK, or a divisor of that. sinks_N: undefined where the spec has none.
at::Tensor plain_softmax_attention(const at::Tensor& q_TNK, const at::Tensor& k_TMK,
                                   const at::Tensor& v_TMV, const AttentionSpec& attention,
                                   const Packing& packing, const at::Tensor& sinks_N);

}  // namespace longspan
