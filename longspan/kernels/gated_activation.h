// What a gated MLP makes of gate and up, by its activation (spec/gated_mlp_spec.h).
// T: rows, I: intermediate dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/spec/gated_mlp_spec.h"

namespace longspan {

/// Into `out`, which may be `gate` or `up`.
void gated_out(const GateActivation& activation, at::Tensor& out_TI, const at::Tensor& gate_TI,
               const at::Tensor& up_TI);

/// On entry gate, up and d loss / d act; on return d loss / d gate, d loss / d up and act, in the
/// same memory.
void gated_backward_(const GateActivation& activation, at::Tensor& gate_TI, at::Tensor& up_TI,
                     at::Tensor& dact_TI);

/// The same as gated_out(), in a few operations of ATen with autograd's own gradients.
at::Tensor plain_gated(const GateActivation& activation, const at::Tensor& gate_TI,
                       const at::Tensor& up_TI);

}  // namespace longspan
