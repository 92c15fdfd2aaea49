#include "longspan/layers/gated_mlp.h"

#include <ATen/ATen.h>

#include <utility>

#include "longspan/kernels/gated_activation.h"
#include "longspan/layers/plain_steps.h"

namespace longspan {

GatedMlp::GatedMlp(const GatedMlpSpec& spec, Weights weights)
    : spec_(spec), weights_(std::move(weights)) {}

std::unique_ptr<FeedForward> GatedMlp::clone() const { return std::make_unique<GatedMlp>(*this); }

std::vector<Linear*> GatedMlp::linears() {
  return {&weights_.gate_proj, &weights_.up_proj, &weights_.down_proj};
}

std::vector<at::Tensor> GatedMlp::parameters() const {
  std::vector<at::Tensor> parameters;
  append_parameters(parameters, {&weights_.gate_proj, &weights_.up_proj, &weights_.down_proj});
  return parameters;
}

// Memory for gate and up.
SavedStep GatedMlp::empty_saved(int64_t num_rows, const at::TensorOptions& options) const {
  const int64_t I = spec_.intermediate_size;
  return {at::empty({num_rows, I}, options), at::empty({num_rows, I}, options)};
}

at::Tensor GatedMlp::forward_room(int64_t num_rows, bool saved,
                                  const at::TensorOptions& options) const {
  return at::empty({saved ? 1 : 2, num_rows, spec_.intermediate_size}, options);
}

at::Tensor GatedMlp::backward_room(int64_t num_rows, bool saved,
                                   const at::TensorOptions& options) const {
  return at::empty({saved ? 1 : 3, num_rows, spec_.intermediate_size}, options);
}

void GatedMlp::forward_out(at::Tensor out_CD, const at::Tensor& h_CD, const InputRows& x,
                           const SavedStep& saved, SharedChoice& /*choice*/,
                           const at::Tensor& room) const {
  const at::Tensor& x_CD = x.x_CD;
  const RowRange& rows = x.rows;
  const auto part = [&](int i) { return room[i].narrow(0, 0, rows.size); };
  at::Tensor act_CI = part(0);
  const at::Tensor gate_CI = saved.empty() ? act_CI : saved[0];
  const at::Tensor up_CI = saved.empty() ? part(1) : saved[1];
  weights_.gate_proj.for_rows(rows.begin, rows.size).forward_out(gate_CI, x_CD);
  weights_.up_proj.for_rows(rows.begin, rows.size).forward_out(up_CI, x_CD);
  gated_out(spec_.activation, act_CI, gate_CI, up_CI);
  weights_.down_proj.for_rows(rows.begin, rows.size)
      .add_forward_out(std::move(out_CD), h_CD, act_CI);
}

at::Tensor GatedMlp::backward(const at::Tensor& dout_CD, const InputRows& x, const SavedStep& saved,
                              const SharedChoice& /*choice*/, const at::Tensor& room) const {
  const at::Tensor& x_CD = x.x_CD;
  const RowRange& rows = x.rows;
  const Linear gate_proj = weights_.gate_proj.for_rows(rows.begin, rows.size),
               up_proj = weights_.up_proj.for_rows(rows.begin, rows.size),
               down_proj = weights_.down_proj.for_rows(rows.begin, rows.size);
  const auto part = [&](int i) { return room[i].narrow(0, 0, rows.size); };
  at::Tensor gate_CI = saved.empty() ? part(1) : saved[0];
  at::Tensor up_CI = saved.empty() ? part(2) : saved[1];
  if (saved.empty()) {
    gate_proj.forward_out(gate_CI, x_CD);
    up_proj.forward_out(up_CI, x_CD);
  }
  at::Tensor dact_CI = part(0);
  down_proj.input_gradient_out(dact_CI, dout_CD);
  gated_backward_(spec_.activation, gate_CI, up_CI, dact_CI);
  const auto &dgate_CI = gate_CI, &dup_CI = up_CI, &act_CI = dact_CI;
  down_proj.add_gradients(dout_CD, act_CI);
  gate_proj.add_gradients(dgate_CI, x_CD);
  up_proj.add_gradients(dup_CI, x_CD);
  at::Tensor dx_CD = gate_proj.input_gradient(dgate_CI);
  up_proj.add_input_gradient(dx_CD, dup_CI);
  return dx_CD;
}

at::Tensor GatedMlp::plain(const at::Tensor& x_TD) const {
  const at::Tensor act_TI = plain_gated(spec_.activation, plain_linear(weights_.gate_proj, x_TD),
                                        plain_linear(weights_.up_proj, x_TD));
  return plain_linear(weights_.down_proj, act_TI);
}

std::shared_ptr<const FeedForward> make_feed_forward(const GatedMlpSpec& spec,
                                                     const ModelSpec& /*model*/,
                                                     const LayerWeights& weights) {
  return std::make_shared<GatedMlp>(
      spec, GatedMlp::Weights{weights.linear("mlp.gate_proj"), weights.linear("mlp.up_proj"),
                              weights.linear("mlp.down_proj")});
}

}  // namespace longspan
