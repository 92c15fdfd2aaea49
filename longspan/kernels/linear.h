// Linear layers, and the one place that adds gradients of parameters. T: rows, I: input dim, O:
// output dim, R: inner dim of a LoRA adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "longspan/kernels/dropout.h"
#include "longspan/kernels/eight_bits.h"
#include "longspan/kernels/gemm.h"

namespace longspan {

/// parameter.grad += gradient, in the dtype of .grad (the parameter's where there is no .grad yet).
/// Where possible, the first gradient of a step becomes .grad without a copy.
void add_gradient(const at::Tensor& parameter, at::Tensor gradient);

/// parameter.grad += a^T b for a_TO, b_TI, without another tensor as large as .grad.
void add_gemm_gradient(const at::Tensor& parameter, const at::Tensor& a_TO, const at::Tensor& b_TI,
                       GemmShapes shapes = GemmShapes::kRecurring);

/// Returns parameter.grad; creates a missing .grad with zeros.
at::Tensor& gradient_of(const at::Tensor& parameter);

/// Returns the dtype of parameter.grad.
at::ScalarType gradient_dtype(const at::Tensor& parameter);

/// Returns the parameter, in its dtype, as an input of autograd operations. Adds the parameter's
/// gradient to .grad. Undefined for an undefined parameter.
at::Tensor as_input(const at::Tensor& parameter);

/// Sums a gradient in fp32 if a row computes the gradient in several parts. While the object lives,
/// an fp32 sum replaces each bf16 .grad; finish() rounds the sum once. In bf16 each part would be
/// rounded, and small parts of long rows would be lost.
class PreciseSums {
 public:
  /// No-op with fewer than two parts.
  PreciseSums(const std::vector<at::Tensor>& parameters, int64_t num_parts);
  /// Restores .grad unless finished.
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

/// Returns the lengths of the rows of W + scale B A, computed in `dtype`.
at::Tensor adapted_row_lengths(const at::Tensor& weight_OI, const at::Tensor& a_RI,
                               const at::Tensor& b_OR, double scale, at::ScalarType dtype);

/// y_TO = x_TI W^T + b, with parameters W_OI and, where defined, b_O. The parameters may have
/// another dtype than x, and are cast at use. An adapter (LoRA, arXiv 2106.09685) adds scale *
/// dropout(x) A^T B^T. With magnitudes m_O (DoRA, arXiv 2402.09353), row o of W + scale B A has the
/// length m_o: y = x W^T + b + dropout(x) (V - W)^T, with V_o = m_o (W + scale B A)_o / its length.
/// No gradient goes through the length.
struct Linear {
  at::Tensor weight, bias;
  at::Tensor lora_a, lora_b;  // [R, I] and [O, R], or more rows of B; undefined: no adapter
  double lora_scale = 0.0;
  /// The layer's first row in lora_b, which several layers with the same A may share.
  int64_t lora_b_begin = 0;
  at::Tensor magnitude;  // as many numbers as lora_b has rows; undefined: none
  /// The frozen weight in 8 bits: x W^T is then eight_bit_product_out(), and dy W takes the weight.
  /// Not with magnitudes.
  EightBitRows eight_bits = {};
  /// adapted_row_lengths(), which with_lengths() computes for several uses.
  at::Tensor lengths_O = {};
  Dropout dropout = {};                        // of the adapter's input, for this layer's rows
  std::shared_ptr<const Linear> cast_of = {};  // the layer that gets gradients; null: this layer
  int64_t first_output = 0;                    // this layer's first output in cast_of
  GemmShapes shapes = GemmShapes::kRecurring;  // of its gemms

  at::Tensor forward(const at::Tensor& x_TI) const;
  /// Writes forward() into y_TO.
  void forward_out(at::Tensor y_TO, const at::Tensor& x_TI) const;
  /// out = h + x W^T + b + ...; out may be h.
  void add_forward_out(at::Tensor out_TO, const at::Tensor& h_TO, const at::Tensor& x_TI) const;
  /// y += x W^T + b + ...
  void add_forward_(at::Tensor y_TO, const at::Tensor& x_TI) const;
  /// Adds to the gradients of trained parameters.
  void add_gradients(const at::Tensor& dy_TO, const at::Tensor& x_TI) const;
  /// dy W + ...
  at::Tensor input_gradient(const at::Tensor& dy_TO) const;
  void input_gradient_out(at::Tensor dx_TI, const at::Tensor& dy_TO) const;
  /// dx += dy W + ...
  void add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const;
  /// The whole backward: add_gradients(); and dx += dy W + ... unless dx_TI is null. Makes an
  /// undefined dx.
  void backward(const at::Tensor& dy_TO, const at::Tensor& x_TI, at::Tensor* dx_TI) const;
  /// Returns the layer with parameters in `dtype`, without gradients.
  Linear cast(at::ScalarType dtype) const;
  /// As cast(), for several consecutive uses. The result adds gradients to this layer's parameters.
  Linear cast_for_uses(at::ScalarType dtype) const;
  /// Returns the layer for some rows, with the dropout of these rows.
  Linear for_rows(int64_t begin, int64_t size) const;
  Linear for_rows(const at::Tensor& rows_L) const;
  /// Returns the layer with lengths_O, if it has magnitudes. Neither W nor the adapter may change
  /// while the result is used.
  Linear with_lengths() const;
  /// Returns m_O / lengths_O, without gradients.
  at::Tensor row_factors() const;
  /// Returns the layer restricted to some outputs. The result adds gradients to this layer's
  /// parameters.
  Linear for_outputs(int64_t begin, int64_t count) const;
  bool has_adapter() const { return lora_a.defined(); }
  /// Returns the layer's rows of lora_b, or of a tensor with as many rows.
  at::Tensor own_lora_b() const { return own_rows_of(lora_b); }
  at::Tensor own_rows_of(const at::Tensor& like_b) const {
    const int64_t num_rows = weight.size(0);
    return like_b.size(0) == num_rows ? like_b : like_b.narrow(0, lora_b_begin, num_rows);
  }
  /// Weight, bias, A, B, magnitudes as stored. Some may be undefined.
  std::vector<at::Tensor> parameters() const {
    return cast_of ? cast_of->parameters() : std::vector{weight, bias, lora_a, lora_b, magnitude};
  }
};

}  // namespace longspan
