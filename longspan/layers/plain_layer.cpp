#include "longspan/layers/plain_layer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace longspan {
namespace {

void append_linears(std::vector<at::Tensor>& parameters, const std::vector<Linear*>& linears) {
  append_parameters(parameters, {linears.begin(), linears.end()});
}

/// Gives a zero gradient to parameters without part in the result, so that every process has a
/// gradient for each trained parameter.
void complete_gradients(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.requires_grad()) gradient_of(parameter);
  }
}

at::Tensor checked(const at::Tensor& y_TD, const at::Tensor& x_TD) {
  TORCH_CHECK(y_TD.sizes() == x_TD.sizes(), "a plain layer makes ", y_TD.sizes(), " of ",
              x_TD.sizes());
  return y_TD.to(x_TD.scalar_type());
}

}  // namespace

// Takes the linear layers from a copy, since this mixer is const.
std::vector<at::Tensor> PlainMixer::parameters_before() const {
  std::vector<at::Tensor> parameters = other_parameters();
  const std::unique_ptr<TokenMixer> copy = clone();
  append_linears(parameters, copy->linears_before());
  return parameters;
}

at::Tensor PlainMixer::empty_input(int /*i*/, int64_t num_rows,
                                   const at::TensorOptions& options) const {
  return at::empty({num_rows, hidden_size_}, options);
}

at::Tensor PlainMixer::input(int /*i*/, at::Tensor room, const InputRows& x,
                             SavedStep* /*saved*/) const {
  return room.copy_(x.x_CD);
}

// Autograd runs it after the backward of the mixing.
void PlainMixer::input_backward(int /*i*/, const at::Tensor& dinput_C, const InputRows& /*x*/,
                                const SavedStep* /*saved*/, at::Tensor* dx_CD) const {
  complete_gradients(parameters_before());
  if (dx_CD == nullptr) return;
  if (dx_CD->defined()) {
    dx_CD->add_(dinput_C);
  } else {
    *dx_CD = dinput_C;
  }
}

at::Tensor PlainMixer::mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const {
  return checked(plain(inputs.at(0), row), inputs[0]).contiguous();
}

void PlainMixer::output_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& mixed_C,
                            const RowRange& /*rows*/) const {
  at::add_out(sum_CD, h_CD, mixed_C);
}

void PlainMixer::output_backward(const at::Tensor& dsum_CD, const at::Tensor& /*mixed_C*/,
                                 const RowRange& /*rows*/, at::Tensor dmixed_C) const {
  if (dmixed_C.defined()) dmixed_C.copy_(dsum_CD);
}

std::vector<at::Tensor> PlainFeedForward::parameters() const {
  std::vector<at::Tensor> parameters = other_parameters();
  const std::unique_ptr<FeedForward> copy = clone();
  append_linears(parameters, copy->linears());
  return parameters;
}

SavedStep PlainFeedForward::empty_saved(int64_t /*num_rows*/,
                                        const at::TensorOptions& /*options*/) const {
  return {};
}

at::Tensor PlainFeedForward::forward_room(int64_t /*num_rows*/, bool /*saved*/,
                                          const at::TensorOptions& /*options*/) const {
  return {};
}

at::Tensor PlainFeedForward::backward_room(int64_t /*num_rows*/, bool /*saved*/,
                                           const at::TensorOptions& /*options*/) const {
  return {};
}

at::Tensor PlainFeedForward::of_rows(const at::Tensor& x_CD, const RowRange& rows) const {
  const std::unique_ptr<FeedForward> some = clone();
  for (Linear* linear : some->linears()) *linear = linear->for_rows(rows.begin, rows.size);
  return checked(some->plain(x_CD), x_CD);
}

void PlainFeedForward::forward_out(at::Tensor out_CD, const at::Tensor& h_CD, const InputRows& x,
                                   const SavedStep& /*saved*/, SharedChoice& /*choice*/,
                                   const at::Tensor& /*room*/) const {
  const c10::NoGradGuard no_grad;
  at::add_out(out_CD, h_CD, of_rows(x.x_CD, x.rows));
}

at::Tensor PlainFeedForward::backward(const at::Tensor& dout_CD, const InputRows& x,
                                      const SavedStep& /*saved*/, const SharedChoice& /*choice*/,
                                      const at::Tensor& /*room*/) const {
  const at::Tensor x_CD = x.x_CD.detach().requires_grad_(true);
  {
    const c10::AutoGradMode with_graph(true);
    torch::autograd::backward({of_rows(x_CD, x.rows)}, {dout_CD});
  }
  complete_gradients(parameters());
  return x_CD.grad();
}

}  // namespace longspan
