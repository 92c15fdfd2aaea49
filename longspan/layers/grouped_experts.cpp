#include "longspan/layers/grouped_experts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "longspan/kernels/gated_activation.h"

namespace longspan {
namespace {

/// Returns linear layer `number` of each expert.
std::vector<const Linear*> linears_at(const std::vector<ExpertMlp>& experts, size_t number) {
  std::vector<const Linear*> all;
  all.reserve(experts.size());
  for (const ExpertMlp& expert : experts) all.push_back(expert.linears().at(number));
  return all;
}

}  // namespace

bool GroupedExperts::can_group(const std::vector<ExpertMlp>& experts) {
  if (experts.empty()) return false;
  for (size_t number = 0; number < experts[0].linears().size(); ++number) {
    if (!GroupedLinear::can_group(linears_at(experts, number))) return false;
  }
  return true;
}

GroupedExperts::GroupedExperts(const std::vector<ExpertMlp>& experts,
                               const GateActivation& activation, const at::Tensor& counts_E,
                               int64_t num_rows, bool trains)
    : activation_(activation),
      expert_size_(experts.at(0).down_proj.weight.size(1)),
      table_(counts_E.device()),
      linears_(linears_of(experts, trains)),
      sorted_(grouped::sort_out(counts_E, num_rows)) {
  table_.send();
}

GroupedExperts::Linears GroupedExperts::linears_of(const std::vector<ExpertMlp>& experts,
                                                   bool trains) {
  const size_t down = experts[0].linears().size() - 1;
  std::vector<GroupedLinear> gate_and_up;
  for (size_t number = 0; number < down; ++number) {
    gate_and_up.emplace_back(linears_at(experts, number), table_, trains);
  }
  return {std::move(gate_and_up), GroupedLinear(linears_at(experts, down), table_, trains)};
}

void GroupedExperts::gate_and_up_out(at::Tensor& gate_SI, at::Tensor& up_SI,
                                     const at::Tensor& both_S2I, const PickedRows& x) const {
  if (!takes_turns()) {
    linears_.gate_and_up[0].forward_out(gate_SI, {}, x, sorted_);
    linears_.gate_and_up[1].forward_out(up_SI, {}, x, sorted_);
    return;
  }
  at::Tensor both = both_S2I;
  linears_.gate_and_up[0].forward_out(both, {}, x, sorted_);
  gate_SI.copy_(gates_of(both));
  up_SI.copy_(ups_of(both));
}

at::Tensor GroupedExperts::forward(const at::Tensor& to_S, const PickedRows& x) const {
  const int64_t S = sorted_.num_rows, I = expert_size_;
  at::Tensor gate_SI = at::empty({S, I}, x.x.options()), up_SI = at::empty_like(gate_SI);
  {
    const at::Tensor both_S2I = takes_turns() ? at::empty({S, 2 * I}, x.x.options()) : at::Tensor();
    gate_and_up_out(gate_SI, up_SI, both_S2I, x);
  }
  gated_out(activation_, gate_SI, gate_SI, up_SI);
  up_SI.reset();
  at::Tensor y_SD = at::empty({S, x.x.size(1)}, x.x.options());
  linears_.down.forward_out(y_SD, to_S, {gate_SI}, sorted_);
  return y_SD;
}

at::Tensor GroupedExperts::backward(at::Tensor& dweights, const at::Tensor& to_S,
                                    const PickedRows& x, const PickedRows& dout,
                                    const at::Tensor& weights_S) const {
  const int64_t S = sorted_.num_rows, I = expert_size_;
  const auto room = [&](int64_t width) { return at::empty({S, width}, x.x.options()); };
  at::Tensor gate_SI = room(I), up_SI = room(I), dact_SI = room(I);
  const at::Tensor both_S2I = takes_turns() ? room(2 * I) : at::Tensor();
  gate_and_up_out(gate_SI, up_SI, both_S2I, x);
  const at::Tensor weights_S1 = weights_S.to(x.x.scalar_type()).unsqueeze(1);
  const GroupedLinear& down = linears_.down;
  {
    at::Tensor back_SI = room(I);  // gradient of act for weights of 1
    const at::Tensor inner_SR = down.inner_gradient(dout, sorted_);
    std::vector<GroupedOperands> operands;
    down.append_input_operands(operands, dout, inner_SR);
    grouped::input_gradient_out(back_SI, {}, sorted_, operands);
    at::mul_out(dact_SI, back_SI, weights_S1);
    gated_backward_(activation_, gate_SI, up_SI, dact_SI);
    grouped::dots_out(dweights, to_S, sorted_, {back_SI}, dact_SI);
    down.add_bias_dots(dweights, to_S, dout, sorted_);
    // The gradient is a sum over rows of weight * dout * act, so act is weighted.
    dact_SI.mul_(weights_S1);
    down.add_gradients(dout, inner_SR, {dact_SI}, sorted_);
    down.add_bias_gradients(dout, weights_S, sorted_);
  }
  dact_SI.reset();
  if (takes_turns()) {
    gates_of(both_S2I).copy_(gate_SI);
    ups_of(both_S2I).copy_(up_SI);
  }
  const std::vector<at::Tensor> dmade =
      takes_turns() ? std::vector{both_S2I} : std::vector{gate_SI, up_SI};
  std::vector<GroupedOperands> operands;
  for (size_t i = 0; i < dmade.size(); ++i) {
    const GroupedLinear& linear = linears_.gate_and_up[i];
    const at::Tensor inner_SR = linear.inner_gradient({dmade[i]}, sorted_);
    linear.append_input_operands(operands, {dmade[i]}, inner_SR);
    linear.add_gradients({dmade[i]}, inner_SR, x, sorted_);
    linear.add_bias_gradients({dmade[i]}, {}, sorted_);
  }
  at::Tensor dx_SD = room(x.x.size(1));
  grouped::input_gradient_out(dx_SD, to_S, sorted_, operands);
  return dx_SD;
}

}  // namespace longspan
