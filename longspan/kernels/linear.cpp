#include "longspan/kernels/linear.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/spec/device_sizes.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace longspan {
namespace {

/// y += scale x A^T B^T
void add_adapter_(const Linear& layer, at::Tensor& y_TO, const at::Tensor& x_TI) {
  const auto dtype = x_TI.scalar_type();
  const at::Tensor inner_TR =
      gemm(x_TI, layer.lora_a.to(dtype).t(), layer.shapes).mul_(layer.lora_scale);
  add_gemm_(y_TO, inner_TR, layer.own_lora_b().to(dtype).t(), 1.0, layer.shapes);
}

/// Writes x W^T into y.
void weight_product_out(const Linear& layer, const at::Tensor& y_TO, const at::Tensor& x_TI) {
  if (layer.eight_bits.defined()) return eight_bit_product_out(y_TO, x_TI, layer.eight_bits);
  gemm_out(y_TO, x_TI, layer.weight.to(x_TI.scalar_type()).t(), layer.shapes);
}

/// Returns x (W + scale B A)^T.
at::Tensor adapted_product(const Linear& layer, const at::Tensor& x_TI) {
  at::Tensor y_TO = gemm(x_TI, layer.weight.to(x_TI.scalar_type()).t(), layer.shapes);
  add_adapter_(layer, y_TO, x_TI);
  return y_TO;
}

/// Writes x W^T of a layer with magnitudes, with its adapter, into y. Where gemms give fp32, the
/// scaled product is rounded once: in bf16 a factor near 1 would be lost.
void product_with_magnitudes_out(const Linear& layer, at::Tensor& y_TO, const at::Tensor& x_TI) {
  TORCH_CHECK(!layer.eight_bits.defined(), "a weight in 8 bits has no magnitudes");
  const at::Tensor weight_OI = layer.weight.to(x_TI.scalar_type()),
                   dropped_TI = layer.dropout.apply(x_TI);
  const auto product_out = [&](at::Tensor product_TO, const at::Tensor& input_TI) {
    return gemm_out(product_TO, input_TI, weight_OI.t(), layer.shapes);
  };
  const bool drops = layer.dropout.active(), is_wide = gives_fp32(x_TI);
  at::Tensor adapted_TO = y_TO;
  if (drops || is_wide) {
    adapted_TO =
        at::empty(y_TO.sizes(), is_wide ? x_TI.options().dtype(at::kFloat) : x_TI.options());
  }
  product_out(adapted_TO, dropped_TI);
  if (drops) product_out(y_TO, x_TI).sub_(adapted_TO);
  add_adapter_(layer, adapted_TO, dropped_TI);
  if (drops) {
    y_TO.add_(adapted_TO.mul_(layer.row_factors()));
  } else {
    at::mul_out(y_TO, adapted_TO, layer.row_factors());
  }
}

/// Completes y = x W^T of a layer without magnitudes.
void add_bias_and_adapter(const Linear& layer, at::Tensor& y_TO, const at::Tensor& x_TI) {
  if (layer.bias.defined()) y_TO.add_(layer.bias.to(x_TI.scalar_type()));
  if (layer.has_adapter()) add_adapter_(layer, y_TO, layer.dropout.apply(x_TI));
}

/// Writes x W^T into y, with the adapter and the bias.
void product_out(const Linear& layer, at::Tensor& y_TO, const at::Tensor& x_TI) {
  const auto dtype = x_TI.scalar_type();
  if (layer.magnitude.defined()) {
    product_with_magnitudes_out(layer, y_TO, x_TI);
    if (layer.bias.defined()) y_TO.add_(layer.bias.to(dtype));
    return;
  }
  weight_product_out(layer, y_TO, x_TI);
  add_bias_and_adapter(layer, y_TO, x_TI);
}

/// Returns dy times the factors of the rows, in the dtype of dy.
at::Tensor times_factors(const Linear& layer, const at::Tensor& dy_TO) {
  at::Tensor product_TO = at::empty_like(dy_TO, at::MemoryFormat::Contiguous);
  at::mul_out(product_TO, dy_TO, layer.row_factors());
  return product_TO;
}

/// d loss / d outputs of a layer's two products.
struct ProductGradients {
  at::Tensor of_weight_TO;   // of x W^T
  at::Tensor of_adapted_TO;  // of dropout(x) (scale B A)^T
  at::Tensor of_dropped_TO;  // of dropout(x) W^T; undefined: there is no such product
};

ProductGradients product_gradients(const Linear& layer, const at::Tensor& dy_TO) {
  if (!layer.magnitude.defined()) return {dy_TO, dy_TO, {}};
  const at::Tensor scaled_TO = times_factors(layer, dy_TO);
  if (!layer.dropout.active()) return {scaled_TO, scaled_TO, {}};
  return {dy_TO, scaled_TO, scaled_TO - dy_TO};
}

void add_adapter_input_gradient(const Linear& layer, at::Tensor& dx_TI,
                                const ProductGradients& gradients) {
  if (!layer.has_adapter()) return;
  const auto dtype = gradients.of_adapted_TO.scalar_type();
  const at::Tensor dinner_TR =
      gemm(gradients.of_adapted_TO, layer.own_lora_b().to(dtype), layer.shapes)
          .mul_(layer.lora_scale);
  if (layer.dropout.active()) {
    at::Tensor sum_TI = gemm(dinner_TR, layer.lora_a.to(dtype), layer.shapes);
    if (gradients.of_dropped_TO.defined()) {
      add_gemm_(sum_TI, gradients.of_dropped_TO, layer.weight.to(dtype), 1.0, layer.shapes);
    }
    dx_TI.add_(layer.dropout.apply(sum_TI));
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

/// Adds a vector to the elements of the parameter's gradient from `begin` on.
void add_to_gradient(const at::Tensor& parameter, int64_t begin, at::Tensor sum_O) {
  if (parameter.size(0) == sum_O.size(0)) {
    add_gradient(parameter, std::move(sum_O));
    return;
  }
  c10::NoGradGuard no_grad;
  gradient_of(parameter).narrow(0, begin, sum_O.size(0)).add_(sum_O);
}

/// Adds the gradients of bias and magnitudes: of the layer `held`, for the outputs of `layer`,
/// whose first output is output `first` of `held`.
void add_vector_gradients(const Linear& held, const Linear& layer, int64_t first,
                          const at::Tensor& dy_TO, const at::Tensor& x_TI) {
  if (held.bias.defined() && held.bias.requires_grad()) {
    const auto dtype = gradient_dtype(held.bias);
    add_to_gradient(held.bias, first, at::sum(dy_TO, {0}, /*keepdim=*/false, dtype));
  }
  if (!held.magnitude.defined() || !held.magnitude.requires_grad()) return;
  const auto dtype = gradient_dtype(held.magnitude);
  at::Tensor product_TO = adapted_product(layer, layer.dropout.apply(x_TI)).mul_(dy_TO);
  const at::Tensor lengths_O = layer.with_lengths().lengths_O;
  at::Tensor sum_O = at::sum(product_TO, {0}, /*keepdim=*/false, lengths_O.scalar_type());
  add_to_gradient(held.magnitude, layer.lora_b_begin, sum_O.div_(lengths_O).to(dtype));
}

/// Adds gradients of the layer's matrices for outputs [first, first + dy.size(1)). `gradients`:
/// those of these outputs.
void add_matrix_gradients(const Linear& layer, int64_t first, const ProductGradients& gradients,
                          const at::Tensor& x_TI) {
  const GemmShapes shapes = layer.shapes;
  if (layer.weight.requires_grad()) {
    TORCH_CHECK(!layer.magnitude.defined(), "a trained weight has no magnitudes");
    add_rows_gradient(layer.weight, first, gradients.of_weight_TO, x_TI, shapes);
  }
  if (!layer.has_adapter() || !layer.lora_a.requires_grad()) return;
  const at::Tensor& dy_TO = gradients.of_adapted_TO;
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

at::Tensor adapted_row_lengths(const at::Tensor& weight_OI, const at::Tensor& a_RI,
                               const at::Tensor& b_OR, double scale, at::ScalarType dtype) {
  c10::NoGradGuard no_grad;
  const int64_t num_rows = weight_OI.size(0), bytes = c10::elementSize(dtype) * weight_OI.size(1),
                most = std::max<int64_t>(1, device_sizes(weight_OI.is_cuda()).gemm_bytes / bytes);
  const at::Tensor a = a_RI.to(dtype), b = b_OR.to(dtype);
  const at::Tensor lengths_O = at::empty({num_rows}, weight_OI.options().dtype(dtype));
  for (int64_t begin = 0; begin < num_rows; begin += most) {
    const int64_t size = std::min(most, num_rows - begin);
    const at::Tensor rows = at::mm(b.narrow(0, begin, size), a).mul_(scale);
    rows.add_(weight_OI.narrow(0, begin, size));
    lengths_O.narrow(0, begin, size).copy_(at::linalg_vector_norm(rows, 2, {1}));
  }
  return lengths_O;
}

at::Tensor Linear::forward(const at::Tensor& x_TI) const {
  if (magnitude.defined() || eight_bits.defined()) {
    at::Tensor y_TO = at::empty({x_TI.size(0), weight.size(0)}, x_TI.options());
    product_out(*this, y_TO, x_TI);
    return y_TO;
  }
  at::Tensor y_TO = gemm(x_TI, weight.to(x_TI.scalar_type()).t(), shapes);
  add_bias_and_adapter(*this, y_TO, x_TI);
  return y_TO;
}

void Linear::forward_out(at::Tensor y_TO, const at::Tensor& x_TI) const {
  product_out(*this, y_TO, x_TI);
}

void Linear::add_forward_(at::Tensor y_TO, const at::Tensor& x_TI) const {
  if (y_TO.scalar_type() != x_TI.scalar_type() || magnitude.defined() || eight_bits.defined()) {
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
  add_vector_gradients(held, *this, first_output, dy_TO, x_TI);
  add_matrix_gradients(held, first_output, product_gradients(*this, dy_TO), x_TI);
}

at::Tensor Linear::input_gradient(const at::Tensor& dy_TO) const {
  const ProductGradients gradients = product_gradients(*this, dy_TO);
  at::Tensor dx_TI = gemm(gradients.of_weight_TO, weight.to(dy_TO.scalar_type()), shapes);
  add_adapter_input_gradient(*this, dx_TI, gradients);
  return dx_TI;
}

void Linear::input_gradient_out(at::Tensor dx_TI, const at::Tensor& dy_TO) const {
  const ProductGradients gradients = product_gradients(*this, dy_TO);
  gemm_out(dx_TI, gradients.of_weight_TO, weight.to(dy_TO.scalar_type()), shapes);
  add_adapter_input_gradient(*this, dx_TI, gradients);
}

void Linear::add_input_gradient(at::Tensor& dx_TI, const at::Tensor& dy_TO) const {
  const ProductGradients gradients = product_gradients(*this, dy_TO);
  add_gemm_(dx_TI, gradients.of_weight_TO, weight.to(dy_TO.scalar_type()), 1.0, shapes);
  add_adapter_input_gradient(*this, dx_TI, gradients);
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
  if (magnitude.defined()) layer.magnitude = magnitude.detach();
  return layer;
}

Linear Linear::with_lengths() const {
  if (!magnitude.defined() || lengths_O.defined()) return *this;
  Linear layer = *this;
  layer.lengths_O = adapted_row_lengths(weight, lora_a, own_lora_b(), lora_scale,
                                        at::promoteTypes(weight.scalar_type(), at::kFloat));
  return layer;
}

at::Tensor Linear::row_factors() const {
  c10::NoGradGuard no_grad;
  const at::Tensor lengths = with_lengths().lengths_O;
  return own_rows_of(magnitude).to(lengths.scalar_type()).div(lengths);
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
  if (eight_bits.defined()) layer.eight_bits = eight_bits.rows(begin, count);
  if (bias.defined()) layer.bias = bias.detach().narrow(0, begin, count);
  if (lengths_O.defined()) layer.lengths_O = lengths_O.narrow(0, begin, count);
  return layer;
}

}  // namespace longspan
