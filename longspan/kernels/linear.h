// Linear layers and the one place where gradients of parameters are added up.
// T: rows, I: input dim, O: output dim, R: inner dim of a LoRA adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "longspan/kernels/dropout.h"

namespace longspan {

/// parameter.grad += gradient, in the dtype of .grad, which is the parameter's where there is none
/// yet. The first gradient of a step is taken over instead of copied when it can be.
void add_gradient(const at::Tensor& parameter, at::Tensor gradient);

/// parameter.grad += a^T b for a_TO, b_TI; beside .grad there is never anything of its size.
void add_product_gradient(const at::Tensor& parameter, const at::Tensor& a_TO,
                          const at::Tensor& b_TI);

/// parameter.grad, made of zeros when there is none yet.
at::Tensor& gradient_of(const at::Tensor& parameter);

/// The dtype in which parameter.grad adds up.
at::ScalarType gradient_dtype(const at::Tensor& parameter);

/// The parameter, as it is held, as an input of autograd's operations, whose gradient is then added
/// to .grad. Undefined where it is.
at::Tensor as_input(const at::Tensor& parameter);

/// Gradients that a row gives in several parts. While it lives, .grad of those of the parameters
/// whose gradients are bf16 is an fp32 sum of what it was and the parts; finish() rounds it once.
/// In bf16 each part would be rounded, and small ones be lost: the longer the row, the more.
class PreciseSums {
 public:
  /// With fewer than two parts nothing is done.
  PreciseSums(const std::vector<at::Tensor>& parameters, int64_t num_parts);
  /// Unless finished, .grad is what it was.
  ~PreciseSums();
  PreciseSums(const PreciseSums&) = delete;
  PreciseSums& operator=(const PreciseSums&) = delete;
  void finish();

 private:
  struct Sum {
    at::Tensor parameter, before;
  };
  std::vector<Sum> sums_;
};

/// y_TO = x_TI W^T + b with parameters W_OI and, where defined, b_O, which may be in another dtype
/// than x: they are cast at use. With an adapter (LoRA, arXiv 2106.09685) the layer also adds
/// scale * dropout(x) A^T B^T.
struct Linear {
  at::Tensor weight, bias;
  at::Tensor lora_a, lora_b;  // [R, I] and [O, R], or with more rows; undefined without an adapter
  double lora_scale = 0.0;
  /// Its first row of B, which may be one of several layers' with the same A.
  int64_t lora_b_begin = 0;
  Dropout dropout = {};  // of the adapter's input, for the rows that this layer is given
  std::shared_ptr<const Linear> cast_of = {};  // whose gradients it adds to; null: its own
  int64_t first_output = 0;                    // there, where it has some of those outputs

  at::Tensor forward(const at::Tensor& x_TI) const;
  /// The same into memory that is there.
  void forward_out(at::Tensor y_TO, const at::Tensor& x_TI) const;
  /// out = h + x W^T + b + ...; out may be h.
  void add_forward_out(at::Tensor out_TO, const at::Tensor& h_TO, const at::Tensor& x_TI) const;
  /// y += x W^T + b + ...
  void add_forward_(at::Tensor y_TO, const at::Tensor& x_TI) const;
  /// Adds to the parameters' gradients, as far as they are trained.
  void add_gradients(const at::Tensor& dy_TO, const at::Tensor& x_TI) const;
  /// dy W + ...
  at::Tensor input_gradient(const at::Tensor& dy_TO) const;
  void input_gradient_out(at::Tensor dx_TI, const at::Tensor& dy_TO) const;
  /// dx += dy W + ...
  void add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const;
  /// All of its backward: add_gradients(), and, where dx_TI is not null, dx += dy W + ..., which it
  /// makes where it is undefined.
  void backward(const at::Tensor& dy_TO, const at::Tensor& x_TI, at::Tensor* dx_TI) const;
  /// The same layer with parameters in `dtype`; knows no gradients.
  Linear cast(at::ScalarType dtype) const;
  /// The same for several uses in a row: gradients are added to those of this layer's parameters.
  Linear cast_for_uses(at::ScalarType dtype) const;
  /// The same layer for some of its rows: their dropout.
  Linear for_rows(int64_t begin, int64_t size) const;
  Linear for_rows(const at::Tensor& rows_L) const;
  /// The layer of some of its outputs. Gradients are added to those of this layer's parameters.
  Linear for_outputs(int64_t begin, int64_t count) const;
  bool has_adapter() const { return lora_a.defined(); }
  /// Its rows of B, or of a tensor like it.
  at::Tensor own_lora_b() const { return own_rows_of(lora_b); }
  at::Tensor own_rows_of(const at::Tensor& like_b) const {
    const int64_t num_rows = weight.size(0);
    return like_b.size(0) == num_rows ? like_b : like_b.narrow(0, lora_b_begin, num_rows);
  }
  /// Weight, bias, A, B as they are held; some may be undefined.
  std::vector<at::Tensor> parameters() const {
    return cast_of ? cast_of->parameters() : std::vector{weight, bias, lora_a, lora_b};
  }
};

}  // namespace longspan
