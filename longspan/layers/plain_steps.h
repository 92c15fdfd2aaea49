// Steps of layers in ATen's operations, with autograd's own gradients: what plain versions of
// layers (TokenMixer::plain) are made of. T: tokens, N: heads, H: numbers of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/kernels/rope.h"
#include "longspan/spec/norm_kind.h"

namespace longspan {

/// An RMSNorm over the last dim.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, NormKind kind, double eps);

/// The first numbers of heads rotated by the table's angles, as many as it has.
at::Tensor plain_rotation(const at::Tensor& x_TNH, const RotaryTable& table);

}  // namespace longspan
