// Linear layers and the one place where gradients of parameters are added up.
// T: rows, I: input dim, O: output dim.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

/// parameter.grad += gradient, in the parameter's dtype. The first gradient of a step is taken over
/// instead of copied when it can be.
void add_gradient(const at::Tensor& parameter, at::Tensor gradient);

/// parameter.grad += a^T b for a_TO, b_TI without a temporary (where dtypes agree).
void add_product_gradient(const at::Tensor& parameter, const at::Tensor& a_TO,
                          const at::Tensor& b_TI);

/// parameter.grad, made of zeros when there is none yet.
at::Tensor& gradient_of(const at::Tensor& parameter);

/// y_TO = x_TI W^T + b with parameters W_OI and, where defined, b_O, which may be in another dtype
/// than x: they are cast at use.
struct Linear {
  at::Tensor weight, bias;

  at::Tensor forward(const at::Tensor& x_TI) const;
  /// Adds to weight.grad and bias.grad, as far as they are trained.
  void add_gradients(const at::Tensor& dy_TO, const at::Tensor& x_TI) const;
  /// dy W.
  at::Tensor input_gradient(const at::Tensor& dy_TO) const;
  /// dx += dy W.
  void add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const;
  /// The same layer with parameters in `dtype` for several uses in a row; knows no gradients.
  Linear cast(at::ScalarType dtype) const;
  bool trains() const;
};

}  // namespace longspan
