#include "longspan/kernels/linear.h"
#include "longspan/kernels/fused_op.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace longspan {
namespace {

void add_bias_and_adapter(const Linear& layer, at::Tensor& y_TO, const at::Tensor& x_TI) {
  const auto dtype = x_TI.scalar_type();
  if (layer.bias.defined()) y_TO.add_(layer.bias.to(dtype));
  if (!layer.has_adapter()) return;
  const at::Tensor inner_TR =
      gemm(layer.dropout.apply(x_TI), layer.lora_a.to(dtype).t(), layer.shapes)
          .mul_(layer.lora_scale);
  add_gemm_(y_TO, inner_TR, layer.own_lora_b().to(dtype).t(), 1.0, layer.shapes);
}

void add_adapter_input_gradient(const Linear& layer, at::Tensor& dx_TI, const at::Tensor& dy_TO) {
  if (!layer.has_adapter()) return;
  const auto dtype = dy_TO.scalar_type();
  const at::Tensor dinner_TR =
      gemm(dy_TO, layer.own_lora_b().to(dtype), layer.shapes).mul_(layer.lora_scale);
  if (layer.dropout.active()) {
    dx_TI.add_(layer.dropout.apply(gemm(dinner_TR, layer.lora_a.to(dtype), layer.shapes)));
  } else {
    add_gemm_(dx_TI, dinner_TR, layer.lora_a.to(dtype), 1.0, layer.shapes);
  }
}

/// Adds dy^T x to rows [begin, begin + dy.size(1)) of the parameter's gradient.
void add_rows_gradient(const at::Tensor& parameter, int64_t begin, const at::Tensor& dy_TO,
                       const at::Tensor& x_TI, GemmShapes shapes) {
  const int64_t num_rows = dy_TO.size(1);
  if (parameter.size(0) == num_rows) {
    add_gemm_gradient(parameter, dy_TO, x_TI, shapes);
    return;
  }
  c10::NoGradGuard no_grad;
  add_gemm_(gradient_of(parameter).narrow(0, begin, num_rows), dy_TO.t(), x_TI, 1.0, shapes);
}

void add_bias_gradient(const at::Tensor& bias, int64_t begin, const at::Tensor& dy_TO) {
  at::Tensor sum_O = at::sum(dy_TO, {0}, /*keepdim=*/false, gradient_dtype(bias));
  if (bias.size(0) == sum_O.size(0)) {
    add_gradient(bias, std::move(sum_O));
    return;
  }
  c10::NoGradGuard no_grad;
  gradient_of(bias).narrow(0, begin, sum_O.size(0)).add_(sum_O);
}

/// Adds gradients of the layer's parameters for outputs [first, first + dy.size(1)).
void add_output_gradients(const Linear& layer, int64_t first, const at::Tensor& dy_TO,
                          const at::Tensor& x_TI) {
  const GemmShapes shapes = layer.shapes;
  if (layer.weight.requires_grad()) add_rows_gradient(layer.weight, first, dy_TO, x_TI, shapes);
  if (layer.bias.defined() && layer.bias.requires_grad()) {
    add_bias_gradient(layer.bias, first, dy_TO);
  }
  if (!layer.has_adapter() || !layer.lora_a.requires_grad()) return;
  const auto dtype = x_TI.scalar_type();
  const int64_t first_of_b = layer.lora_b_begin + first;
  const at::Tensor x = layer.dropout.apply(x_TI);
  const at::Tensor inner_TR = gemm(x, layer.lora_a.to(dtype).t(), shapes).mul_(layer.lora_scale);
  const at::Tensor b_OR = layer.lora_b.narrow(0, first_of_b, dy_TO.size(1)).to(dtype);
  const at::Tensor dinner_TR = gemm(dy_TO, b_OR, shapes).mul_(layer.lora_scale);
  add_rows_gradient(layer.lora_b, first_of_b, dy_TO, inner_TR, shapes);
  add_gemm_gradient(layer.lora_a, dinner_TR, x, shapes);
}

}  // namespace

at::Tensor& gradient_of(const at::Tensor& parameter) {
  at::Tensor& grad = parameter.mutable_grad();
  if (!grad.defined()) grad = at::zeros_like(parameter, at::MemoryFormat::Contiguous);
  return grad;
}

at::ScalarType gradient_dtype(const at::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad().scalar_type() : parameter.scalar_type();
}

at::Tensor as_input(const at::Tensor& parameter) {
  if (!needs_backward({}, {parameter})) return parameter.defined() ? parameter.detach() : parameter;
  return attach_backward({parameter.detach()}, {}, {parameter},
                         [parameter](std::vector<at::Tensor> gradients) {
                           // Another owner may hold the same tensor, as for both parts of a sum.
                           // .grad may take over only a tensor that it owns alone.
                           at::Tensor gradient = std::exchange(gradients[0], {});
                           if (!is_sole_owner(gradient)) gradient = gradient.clone();
                           add_gradient(parameter, std::move(gradient));
                           return std::vector<at::Tensor>{};
                         })[0];
}

PreciseSums::PreciseSums(const std::vector<at::Tensor>& parameters, int64_t num_parts) {
  if (num_parts < 2) return;
  c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.requires_grad() ||
        gradient_dtype(parameter) != at::kBFloat16) {
      continue;
    }
    at::Tensor& grad = parameter.mutable_grad();
    sums_.push_back({parameter, grad});
    grad = grad.defined() ? grad.to(at::kFloat)
                          : at::zeros(parameter.sizes(), parameter.options().dtype(at::kFloat));
  }
}

PreciseSums::~PreciseSums() {
  for (Sum& sum : sums_) sum.parameter.mutable_grad() = sum.before;
}

void PreciseSums::finish() {
  c10::NoGradGuard no_grad;
  for (Sum& sum : std::exchange(sums_, {})) {
    at::Tensor& grad = sum.parameter.mutable_grad();
    grad = sum.before.defined() ? sum.before.copy_(grad) : grad.to(at::kBFloat16);
  }
}

void add_gradient(const at::Tensor& parameter, at::Tensor gradient) {
  c10::NoGradGuard no_grad;
  at::Tensor& grad = parameter.mutable_grad();
  if (grad.defined()) {
    grad.add_(gradient);
  } else {
    grad = gradient.to(parameter.scalar_type()).contiguous();
  }
}

void add_gemm_gradient(const at::Tensor& parameter, const at::Tensor& a_TO, const at::Tensor& b_TI,
                       GemmShapes shapes) {
  c10::NoGradGuard no_grad;
  at::Tensor& grad = parameter.mutable_grad();
  if (!grad.defined() && parameter.scalar_type() == a_TO.scalar_type()) {
    grad = gemm(a_TO.t(), b_TI, shapes);
  } else if (!grad.defined() && parameter.scalar_type() == at::kFloat && gives_fp32(a_TO)) {
    grad = gemm_out(at::empty(parameter.sizes(), parameter.options().requires_grad(false)),
                    a_TO.t(), b_TI, shapes);
  } else {
    add_gemm_(gradient_of(parameter), a_TO.t(), b_TI, 1.0, shapes);
  }
}

at::Tensor Linear::forward(const at::Tensor& x_TI) const {
  const auto dtype = x_TI.scalar_type();
  at::Tensor y_TO = gemm(x_TI, weight.to(dtype).t(), shapes);
  add_bias_and_adapter(*this, y_TO, x_TI);
  return y_TO;
}

void Linear::forward_out(at::Tensor y_TO, const at::Tensor& x_TI) const {
  gemm_out(y_TO, x_TI, weight.to(x_TI.scalar_type()).t(), shapes);
  add_bias_and_adapter(*this, y_TO, x_TI);
}

void Linear::add_forward_(at::Tensor y_TO, const at::Tensor& x_TI) const {
  if (y_TO.scalar_type() != x_TI.scalar_type()) {
    y_TO.add_(forward(x_TI));
    return;
  }
  add_gemm_(y_TO, x_TI, weight.to(x_TI.scalar_type()).t(), 1.0, shapes);
  add_bias_and_adapter(*this, y_TO, x_TI);
}

void Linear::add_forward_out(at::Tensor out_TO, const at::Tensor& h_TO,
                             const at::Tensor& x_TI) const {
  if (h_TO.scalar_type() != x_TI.scalar_type()) {
    at::add_out(out_TO, h_TO, forward(x_TI));
    return;
  }
  if (!out_TO.is_same(h_TO)) out_TO.copy_(h_TO);
  add_forward_(out_TO, x_TI);
}

void Linear::add_gradients(const at::Tensor& dy_TO, const at::Tensor& x_TI) const {
  Linear held = cast_of ? *cast_of : *this;
  held.dropout = dropout;
  held.shapes = shapes;
  add_output_gradients(held, first_output, dy_TO, x_TI);
}

at::Tensor Linear::input_gradient(const at::Tensor& dy_TO) const {
  at::Tensor dx_TI = gemm(dy_TO, weight.to(dy_TO.scalar_type()), shapes);
  add_adapter_input_gradient(*this, dx_TI, dy_TO);
  return dx_TI;
}

void Linear::input_gradient_out(at::Tensor dx_TI, const at::Tensor& dy_TO) const {
  gemm_out(dx_TI, dy_TO, weight.to(dy_TO.scalar_type()), shapes);
  add_adapter_input_gradient(*this, dx_TI, dy_TO);
}

void Linear::add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const {
  add_gemm_(dx_TI, dy_TO, weight.to(dy_TO.scalar_type()), 1.0, shapes);
  add_adapter_input_gradient(*this, dx_TI, dy_TO);
}

void Linear::backward(const at::Tensor& dy_TO, const at::Tensor& x_TI, at::Tensor* dx_TI) const {
  add_gradients(dy_TO, x_TI);
  if (dx_TI == nullptr) return;
  if (dx_TI->defined()) {
    add_input_gradient(*dx_TI, dy_TO);
  } else {
    *dx_TI = input_gradient(dy_TO);
  }
}

Linear Linear::cast(at::ScalarType dtype) const {
  c10::NoGradGuard no_grad;
  Linear layer = *this;
  for (at::Tensor* x : {&layer.weight, &layer.bias, &layer.lora_a, &layer.lora_b}) {
    if (x->defined()) *x = x->detach().to(dtype);
  }
  return layer;
}

Linear Linear::cast_for_uses(at::ScalarType dtype) const {
  Linear layer = cast(dtype);
  if (!cast_of) layer.cast_of = std::make_shared<const Linear>(*this);
  return layer;
}

Linear Linear::for_rows(int64_t begin, int64_t size) const {
  if (!dropout.active()) return *this;
  Linear layer = *this;
  layer.dropout.keys_T = dropout.keys_T.narrow(0, begin, size);
  return layer;
}

Linear Linear::for_rows(const at::Tensor& rows_L) const {
  if (!dropout.active()) return *this;
  Linear layer = *this;
  layer.dropout.keys_T = dropout.keys_T.index_select(0, rows_L);
  return layer;
}

Linear Linear::for_outputs(int64_t begin, int64_t count) const {
  Linear layer = *this;
  if (!cast_of) layer.cast_of = std::make_shared<const Linear>(*this);
  layer.first_output += begin;
  layer.lora_b_begin += begin;
  layer.weight = weight.detach().narrow(0, begin, count);
  if (bias.defined()) layer.bias = bias.detach().narrow(0, begin, count);
  return layer;
}

}  // namespace longspan
