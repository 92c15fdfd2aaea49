#include "longspan/layers/expert_mlp.h"

#include <ATen/ATen.h>

namespace longspan {

at::Tensor gates_of(const at::Tensor& both_R2I) {
  return both_R2I.slice(/*dim=*/1, /*start=*/0, /*end=*/both_R2I.size(1), /*step=*/2);
}
at::Tensor ups_of(const at::Tensor& both_R2I) {
  return both_R2I.slice(/*dim=*/1, /*start=*/1, /*end=*/both_R2I.size(1), /*step=*/2);
}

std::vector<Linear*> ExpertMlp::linears() {
  if (takes_turns()) return {&gate_up_proj, &down_proj};
  return {&gate_proj, &up_proj, &down_proj};
}

std::vector<const Linear*> ExpertMlp::linears() const {
  if (takes_turns()) return {&gate_up_proj, &down_proj};
  return {&gate_proj, &up_proj, &down_proj};
}

ExpertMlp ExpertMlp::cast_for_uses(at::ScalarType dtype, const at::Tensor& rows_L) const {
  ExpertMlp used = *this;
  for (Linear* linear : used.linears()) {
    *linear = linear->cast_for_uses(dtype);
    if (!linear->dropout.active() || !linear->has_adapter()) continue;
    TORCH_CHECK(rows_L.defined(), "dropout of rows that come from elsewhere");
    *linear = linear->for_rows(rows_L);
  }
  return used;
}

void ExpertMlp::gate_and_up_out(at::Tensor& gate_RI, at::Tensor& up_RI, const at::Tensor& x_RD,
                                at::Tensor both_R2I) const {
  if (!takes_turns()) {
    gate_proj.forward_out(gate_RI, x_RD);
    up_proj.forward_out(up_RI, x_RD);
    return;
  }
  gate_up_proj.forward_out(both_R2I, x_RD);
  gate_RI.copy_(gates_of(both_R2I));
  up_RI.copy_(ups_of(both_R2I));
}

at::Tensor ExpertMlp::gate_and_up_backward(const at::Tensor& dgate_RI, const at::Tensor& dup_RI,
                                           const at::Tensor& x_RD, at::Tensor both_R2I) const {
  if (!takes_turns()) {
    gate_proj.add_gradients(dgate_RI, x_RD);
    up_proj.add_gradients(dup_RI, x_RD);
    at::Tensor dx_RD = gate_proj.input_gradient(dgate_RI);
    up_proj.add_input_gradient(dx_RD, dup_RI);
    return dx_RD;
  }
  gates_of(both_R2I).copy_(dgate_RI);
  ups_of(both_R2I).copy_(dup_RI);
  gate_up_proj.add_gradients(both_R2I, x_RD);
  return gate_up_proj.input_gradient(both_R2I);
}

}  // namespace longspan
