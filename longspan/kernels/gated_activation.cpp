#include "longspan/kernels/gated_activation.h"

#include <ATen/ATen.h>

#include <variant>

#include "longspan/kernels/fused_rows.h"

namespace longspan {
namespace {

// The register of activations. A kind of the variant that is missing here does not compile.
struct GatedForward {
  at::Tensor& out;
  const at::Tensor &gate, &up;

  void operator()(const Swiglu& /*swiglu*/) const { swiglu_out(out, gate, up); }
  void operator()(const Geglu& /*geglu*/) const { geglu_out(out, gate, up); }
  void operator()(const ClampedSwiglu& clamped) const {
    clamped_swiglu_out(out, gate, up, clamped.slope, clamped.limit);
  }
};

struct GatedBackward {
  at::Tensor &gate, &up, &dact;

  void operator()(const Swiglu& /*swiglu*/) const { swiglu_backward_(gate, up, dact); }
  void operator()(const Geglu& /*geglu*/) const { geglu_backward_(gate, up, dact); }
  void operator()(const ClampedSwiglu& clamped) const {
    clamped_swiglu_backward_(gate, up, dact, clamped.slope, clamped.limit);
  }
};

struct PlainGated {
  const at::Tensor &gate, &up;

  at::Tensor operator()(const Swiglu& /*swiglu*/) const { return at::silu(gate) * up; }
  at::Tensor operator()(const Geglu& /*geglu*/) const { return at::gelu(gate, "tanh") * up; }
  at::Tensor operator()(const ClampedSwiglu& clamped) const {
    const at::Tensor g = gate.clamp_max(clamped.limit);
    return g * at::sigmoid(g * clamped.slope) * (up.clamp(-clamped.limit, clamped.limit) + 1);
  }
};

}  // namespace

void gated_out(const GateActivation& activation, at::Tensor& out_TI, const at::Tensor& gate_TI,
               const at::Tensor& up_TI) {
  std::visit(GatedForward{out_TI, gate_TI, up_TI}, activation);
}

void gated_backward_(const GateActivation& activation, at::Tensor& gate_TI, at::Tensor& up_TI,
                     at::Tensor& dact_TI) {
  std::visit(GatedBackward{gate_TI, up_TI, dact_TI}, activation);
}

at::Tensor plain_gated(const GateActivation& activation, const at::Tensor& gate_TI,
                       const at::Tensor& up_TI) {
  return std::visit(PlainGated{gate_TI, up_TI}, activation);
}

}  // namespace longspan
