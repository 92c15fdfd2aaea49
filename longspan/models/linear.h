// Linear layers and the one place where gradients of parameters are added up.
// T: rows, I: input dim, O: output dim, R: inner dim of a LoRA adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/models/dropout.h"

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
/// than x: they are cast at use. With an adapter (LoRA, arXiv 2106.09685) the layer also adds
/// scale * dropout(x) A^T B^T.
struct Linear {
  at::Tensor weight, bias;
  at::Tensor lora_a, lora_b;  // [R, I] and [O, R]; undefined without an adapter
  double lora_scale = 0.0;
  Dropout dropout = {};  // of the adapter's input, for the rows that this layer is given

  at::Tensor forward(const at::Tensor& x_TI) const;
  /// The same into memory that is there.
  void forward_out(at::Tensor y_TO, const at::Tensor& x_TI) const;
  /// y += x W^T + b + ...
  void add_forward_(at::Tensor y_TO, const at::Tensor& x_TI) const;
  /// Adds to the parameters' gradients, as far as they are trained.
  void add_gradients(const at::Tensor& dy_TO, const at::Tensor& x_TI) const;
  /// dy W + ...
  at::Tensor input_gradient(const at::Tensor& dy_TO) const;
  void input_gradient_out(at::Tensor dx_TI, const at::Tensor& dy_TO) const;
  /// dx += dy W + ...
  void add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const;
  /// The same layer with parameters in `dtype` for several uses in a row; knows no gradients.
  Linear cast(at::ScalarType dtype) const;
  /// The same layer for some of its rows: their dropout.
  Linear for_rows(int64_t begin, int64_t size) const;
  Linear for_rows(const at::Tensor& rows_L) const;
  bool has_adapter() const { return lora_a.defined(); }
  /// Weight, bias, A, B; some may be undefined.
  std::vector<at::Tensor> parameters() const { return {weight, bias, lora_a, lora_b}; }
};

}  // namespace longspan
