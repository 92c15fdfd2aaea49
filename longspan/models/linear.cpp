#include "longspan/models/linear.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "longspan/models/product.h"

namespace longspan {

at::Tensor& gradient_of(const at::Tensor& parameter) {
  at::Tensor& grad = parameter.mutable_grad();
  if (!grad.defined()) grad = at::zeros_like(parameter, at::MemoryFormat::Contiguous);
  return grad;
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

void add_product_gradient(const at::Tensor& parameter, const at::Tensor& a_TO,
                          const at::Tensor& b_TI) {
  c10::NoGradGuard no_grad;
  at::Tensor& grad = parameter.mutable_grad();
  if (grad.defined() && grad.scalar_type() == a_TO.scalar_type()) {
    add_product_(grad, a_TO.t(), b_TI);
  } else {
    add_gradient(parameter, product(a_TO.t(), b_TI));
  }
}

at::Tensor Linear::forward(const at::Tensor& x_TI) const {
  const auto dtype = x_TI.scalar_type();
  at::Tensor y_TO = product(x_TI, weight.to(dtype).t());
  if (bias.defined()) y_TO.add_(bias.to(dtype));
  return y_TO;
}

void Linear::add_gradients(const at::Tensor& dy_TO, const at::Tensor& x_TI) const {
  if (weight.requires_grad()) add_product_gradient(weight, dy_TO, x_TI);
  if (bias.defined() && bias.requires_grad()) {
    add_gradient(bias, at::sum(dy_TO, {0}, /*keepdim=*/false, bias.scalar_type()));
  }
}

at::Tensor Linear::input_gradient(const at::Tensor& dy_TO) const {
  return product(dy_TO, weight.to(dy_TO.scalar_type()));
}

void Linear::add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const {
  add_product_(dx_TI, dy_TO, weight.to(dy_TO.scalar_type()));
}

Linear Linear::cast(at::ScalarType dtype) const {
  c10::NoGradGuard no_grad;
  return {weight.detach().to(dtype), bias.defined() ? bias.detach().to(dtype) : bias};
}

bool Linear::trains() const {
  return weight.requires_grad() || (bias.defined() && bias.requires_grad());
}

}  // namespace longspan
