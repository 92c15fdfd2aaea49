// The activation of a gated MLP on gate and up (spec/gated_mlp_spec.h). T: rows, I: intermediate
// dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/gated_mlp_spec.h"

namespace longspan {

/// Writes the result into `out`, which may be `gate` or `up`.
void gated_out(const GateActivation& activation, at::Tensor& out_TI, const at::Tensor& gate_TI,
               const at::Tensor& up_TI);

/// Replaces gate, up and d loss / d act by d loss / d gate, d loss / d up and act, in place.
void gated_backward_(const GateActivation& activation, at::Tensor& gate_TI, at::Tensor& up_TI,
                     at::Tensor& dact_TI);

/// Returns gated_out() by a few ATen operations with autograd's gradients.
at::Tensor plain_gated(const GateActivation& activation, const at::Tensor& gate_TI,
                       const at::Tensor& up_TI);

}  // namespace longspan
