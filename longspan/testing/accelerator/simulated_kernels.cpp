// T: rows, D: elements of a row, N: heads, H: head dim, F: pairs, V: vocabulary.
#include "longspan/testing/accelerator/simulated_kernels.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cpu_rows.h"
#include "longspan/kernels/dropout.h"
#include "longspan/testing/accelerator/byte_kernels.h"
#include "longspan/testing/accelerator/grouped_kernels.h"
#include "longspan/testing/accelerator/kernel_arguments.h"
#include "longspan/testing/accelerator/machine.h"
#include "longspan/testing/accelerator/recurrent_kernels.h"

namespace longspan::testing::accelerator {
namespace {

at::ScalarType dtype_of(char letter) { return letter == 'b' ? at::kBFloat16 : at::kFloat; }
at::ScalarType weight_dtype(bool is_bf16) { return is_bf16 ? at::kBFloat16 : at::kFloat; }

/// `what`: rms, scale or both; `types`: those of h and y, as in "fb".
Compute norm_forward(std::string_view what, std::string_view types, const cuda::NormForward& a,
                     Arguments& given) {
  const at::ScalarType of_y = dtype_of(types.back());
  const std::array<int64_t, 2> shape{a.num_rows, a.size};
  const at::Tensor h = given.read(a.h, shape, dtype_of(types.front()));
  const bool given_rstd = what == "scale";
  const at::Tensor rstd = given_rstd ? given.read(a.rstd, {a.num_rows}, at::kFloat)
                                     : given.write(a.rstd, {a.num_rows}, at::kFloat);
  if (what == "rms") return [=] { rstd.copy_(cpu_rows::reciprocal_rms(h, a.eps)); };
  const at::Tensor weight = given.read(a.weight, {a.size}, weight_dtype(a.weight_is_bf16 != 0));
  const at::Tensor residual = given.read_if_any(a.residual, shape, of_y);
  const at::Tensor y = given.write(a.y, shape, of_y);
  return [=] {
    if (!given_rstd) rstd.copy_(cpu_rows::reciprocal_rms(h, a.eps));
    if (!residual.defined()) {
      y.copy_(cpu_rows::scale_rows(h, rstd, weight, of_y));
    } else {
      y.copy_(residual + cpu_rows::scale_rows(h, rstd, weight, at::kFloat));
    }
  };
}

/// `blocks`: number of blocks, each with its own sum of weight gradients.
Compute norm_backward(bool sums, std::string_view types, unsigned blocks,
                      const cuda::NormBackward& a, Arguments& given) {
  const at::ScalarType of_h = dtype_of(types.front());
  const std::array<int64_t, 2> shape{a.num_rows, a.size};
  const at::Tensor dy = given.read(a.dy, shape, dtype_of(types.back()));
  const at::Tensor h = given.read(a.h, shape, of_h);
  const at::Tensor weight = given.read(a.weight, {a.size}, weight_dtype(a.weight_is_bf16 != 0));
  const at::Tensor residual = given.read_if_any(a.residual, shape, of_h);
  const at::Tensor rstd = given.read(a.rstd, {a.num_rows}, at::kFloat);
  at::Tensor dh = given.write(a.dh, shape, of_h);
  const at::Tensor parts =
      sums ? given.write(a.dweight, {static_cast<int64_t>(blocks), a.size}, at::kFloat)
           : at::Tensor();
  return [=]() mutable {
    if (sums) parts.zero_();
    cpu_rows::norm_backward_out(dh, dy, h, rstd, weight, residual, sums ? parts[0] : parts);
  };
}

Compute sum_weights(const cuda::WeightSum& a, Arguments& given) {
  const at::Tensor parts = given.read(a.parts, {a.num_parts, a.size}, at::kFloat);
  const at::Tensor dweight = given.change(a.dweight, {a.size}, at::kFloat);
  return [=] { dweight.add_(parts.sum(0)); };
}

/// [T, N, H].
template <typename Argument>
std::array<int64_t, 3> heads_of(const Argument& a) {
  return {a.num_all / a.num_heads, a.num_heads, a.head_dim};
}

template <typename Argument>
RotaryTable table_of(const Argument& a, int64_t num_rows, Arguments& given,
                     RotaryPairs pairs = RotaryPairs::kHalves) {
  return {given.read(a.cos, {num_rows, a.num_pairs}, at::kFloat),
          given.read(a.sin, {num_rows, a.num_pairs}, at::kFloat), pairs};
}

std::array<int64_t, 3> strides_of(const cuda::HeadPlaces& at) {
  return {at.row_stride, at.head_stride, 1};
}

Compute rotate(RotaryPairs pairs, at::ScalarType dtype, const cuda::Rotate& a, Arguments& given) {
  const std::array<int64_t, 3> shape{a.num_rows, a.num_heads, a.head_dim};
  const at::Tensor x = given.read(a.x, shape, dtype, strides_of(a.at_x));
  const RotaryTable table = table_of(a, a.num_rows, given, pairs);
  at::Tensor y = given.write(a.y, shape, dtype);
  return [=]() mutable {
    if (a.copies_rest != 0) y.copy_(x);
    cpu_rows::rotate_(y, table, /*inverse=*/a.sign < 0);
  };
}

at::Tensor as_rows(const at::Tensor& x_TNH) { return x_TNH.contiguous().view({-1, x_TNH.size(2)}); }

/// The norm is rounded before the rotation, as on the CPU.
Compute norm_rotate(at::ScalarType dtype, const cuda::NormRotate& a, Arguments& given) {
  const std::array<int64_t, 3> shape = heads_of(a);
  const at::Tensor x = given.read(a.x, shape, dtype, strides_of(a.at_x));
  const at::Tensor weight = given.read(a.weight, {a.head_dim}, weight_dtype(a.weight_is_bf16 != 0));
  const RotaryTable table = table_of(a, shape[0], given);
  const at::Tensor y = given.write(a.y, shape, dtype, strides_of(a.at_y));
  const at::Tensor rstd =
      a.rstd == nullptr ? at::Tensor() : given.write(a.rstd, {a.num_all}, at::kFloat);
  return [=] {
    const at::Tensor x_RH = as_rows(x), of_rows = cpu_rows::reciprocal_rms(x_RH, a.eps);
    at::Tensor made = cpu_rows::scale_rows(x_RH, of_rows, weight, dtype).view(shape);
    cpu_rows::rotate_(made, table, /*inverse=*/false);
    y.copy_(made);
    if (rstd.defined()) rstd.copy_(of_rows);
  };
}

Compute norm_rotate_backward(bool sums, at::ScalarType dtype, unsigned blocks,
                             const cuda::NormRotateBackward& a, Arguments& given) {
  const std::array<int64_t, 3> shape = heads_of(a);
  const at::Tensor dy = given.read(a.dy, shape, dtype, strides_of(a.at_dy));
  const at::Tensor x = given.read(a.x, shape, dtype, strides_of(a.at_x));
  const at::Tensor weight = given.read(a.weight, {a.head_dim}, weight_dtype(a.weight_is_bf16 != 0));
  const RotaryTable table = table_of(a, shape[0], given);
  const at::Tensor rstd = given.read_if_any(a.rstd, {a.num_all}, at::kFloat);
  const at::Tensor dx = given.write(a.dx, {a.num_all, a.head_dim}, dtype);
  const at::Tensor parts =
      sums ? given.write(a.dweight, {static_cast<int64_t>(blocks), a.head_dim}, at::kFloat)
           : at::Tensor();
  return [=] {
    at::Tensor turned = dy.clone(at::MemoryFormat::Contiguous), out = dx;
    cpu_rows::rotate_(turned, table, /*inverse=*/true);
    const at::Tensor x_RH = as_rows(x);
    if (sums) parts.zero_();
    cpu_rows::norm_backward_out(out, as_rows(turned), x_RH,
                                rstd.defined() ? rstd : cpu_rows::reciprocal_rms(x_RH, a.eps),
                                weight, {}, sums ? parts[0] : parts);
  };
}

Compute gated(std::string_view kind, bool backward, at::ScalarType dtype, const cuda::Gated& a,
              Arguments& given) {
  const std::array<int64_t, 2> shape{1, a.size};
  const double slope = a.slope, limit = a.limit;
  const bool is_clamped = kind == "clamped", is_swiglu = kind == "swiglu";
  if (!backward) {
    const at::Tensor gate = given.read(a.gate, shape, dtype), up = given.read(a.up, shape, dtype);
    at::Tensor act = given.write(a.act, shape, dtype);
    return [=]() mutable {
      if (is_clamped) return cpu_rows::clamped_swiglu_out(act, gate, up, slope, limit);
      (is_swiglu ? cpu_rows::swiglu_out : cpu_rows::geglu_out)(act, gate, up);
    };
  }
  at::Tensor gate = given.change(a.gate, shape, dtype), up = given.change(a.up, shape, dtype),
             act = given.change(a.act, shape, dtype);
  return [=]() mutable {
    if (is_clamped) return cpu_rows::clamped_swiglu_backward_(gate, up, act, slope, limit);
    (is_swiglu ? cpu_rows::swiglu_backward_ : cpu_rows::geglu_backward_)(gate, up, act);
  };
}

Compute log_sum_exp(int64_t num_rows, const cuda::LogSumExp& a, Arguments& given) {
  const at::Tensor logits = given.read(a.logits, {num_rows, a.size}, at::kFloat);
  const at::Tensor labels = given.read(a.labels, {num_rows}, at::kLong);
  const at::Tensor lse = given.write(a.lse, {num_rows}, at::kDouble);
  const at::Tensor picked = given.write(a.picked, {num_rows}, at::kDouble);
  return [=] { cpu_rows::log_sum_exp_rows(logits, labels, lse, picked); };
}

Compute cross_entropy_gradient(at::ScalarType dtype, int64_t num_rows,
                               const cuda::CrossEntropyGradient& a, Arguments& given) {
  const at::Tensor logits = given.read(a.logits, {num_rows, a.size}, at::kFloat);
  const at::Tensor labels = given.read(a.labels, {num_rows}, at::kLong);
  const at::Tensor lse = given.read(a.lse, {num_rows}, at::kDouble);
  const at::Tensor scale = given.read(a.scale, {num_rows}, at::kFloat);
  const at::Tensor out = given.write(a.out, {num_rows, a.size}, dtype);
  return [=] {
    at::Tensor gradient = logits.clone();
    cpu_rows::cross_entropy_gradient_(gradient, labels, lse, scale);
    out.copy_(gradient);
  };
}

Compute drop_out(at::ScalarType dtype, const cuda::DropOut& a, Arguments& given) {
  const std::array<int64_t, 2> shape{a.num_rows, a.num_columns};
  const at::Tensor x = given.read(a.x, shape, dtype);
  const at::Tensor keys = given.read(a.keys, {a.num_rows}, at::kLong);
  const at::Tensor y = given.write(a.y, shape, dtype);
  // The limit is p as a fraction of all hashes (kernels/dropout).
  const Dropout dropout{std::ldexp(static_cast<double>(a.limit), -53), a.seed, keys};
  if (std::abs(a.scale * (1.0 - dropout.p) - 1.0) > 1e-6) {
    throw std::logic_error("dropout's scale is not that of its limit");
  }
  return [=] { y.copy_(dropout.apply(x)); };
}

/// Removes the prefix `beginning` from the name; returns false if it has another.
bool is_next(std::string_view& name, std::string_view beginning) {
  if (!name.starts_with(beginning)) return false;
  name.remove_prefix(beginning.size());
  return true;
}

/// By the kernel names of kernels/cuda_rows.
Compute kernel_of(std::string_view name, const cuda::Launch& launch, const void* argument,
                  Arguments& given) {
  name = name.substr(0, name.rfind("_v"));
  if (name == "sum_weight_gradients") {
    return sum_weights(as<cuda::WeightSum>(argument), given);
  }
  if (is_next(name, "norm_backward_")) {
    const bool sums = is_next(name, "sums_");
    return norm_backward(sums, name, launch.blocks_x, as<cuda::NormBackward>(argument), given);
  }
  if (is_next(name, "norm_rotate_backward_")) {
    const bool sums = is_next(name, "sums_");
    return norm_rotate_backward(sums, dtype_of(name.back()), launch.blocks_x,
                                as<cuda::NormRotateBackward>(argument), given);
  }
  if (is_next(name, "norm_rotate_")) {
    return norm_rotate(dtype_of(name.back()), as<cuda::NormRotate>(argument), given);
  }
  if (is_next(name, "norm_")) {
    const std::string_view what = name.substr(0, name.find('_'));
    return norm_forward(what, name.substr(what.size() + 1), as<cuda::NormForward>(argument), given);
  }
  if (is_next(name, "rotate_")) {
    const RotaryPairs pairs =
        name.starts_with("neighbours_") ? RotaryPairs::kNeighbours : RotaryPairs::kHalves;
    return rotate(pairs, dtype_of(name.back()), as<cuda::Rotate>(argument), given);
  }
  if (const std::string_view gate = name.substr(0, name.find('_'));
      gate == "swiglu" || gate == "geglu" || gate == "clamped") {
    return gated(gate, name.find("_backward_") != std::string_view::npos, dtype_of(name.back()),
                 as<cuda::Gated>(argument), given);
  }
  if (name == "log_sum_exp") {
    return log_sum_exp(launch.blocks_x, as<cuda::LogSumExp>(argument), given);
  }
  if (is_next(name, "cross_entropy_gradient_")) {
    return cross_entropy_gradient(dtype_of(name.back()), launch.blocks_x,
                                  as<cuda::CrossEntropyGradient>(argument), given);
  }
  if (is_next(name, "drop_out_")) {
    return drop_out(dtype_of(name.back()), as<cuda::DropOut>(argument), given);
  }
  if (Compute compute = grouped_kernel(name, launch, argument, given)) return compute;
  if (Compute compute = recurrent_kernel(name, launch.blocks_y, argument, given)) return compute;
  if (Compute compute = byte_kernel(name, argument, given)) return compute;
  throw std::logic_error(fmt::format("the simulated accelerator has no kernel {}", name));
}

class RowKernels : public cuda::Kernels {
 public:
  explicit RowKernels(int device) : device_(device) {}
  // An H100's.
  int num_multiprocessors() const override { return 132; }
  int shared_bytes() const override { return 228 << 10; }

 protected:
  void start(const std::string& name, const cuda::Launch& launch, const void* argument) override {
    Arguments given;
    const Compute compute = kernel_of(name, launch, argument, given);
    Machine::get().launch(name, current_stream(device_), given.uses());
    compute();
  }

 private:
  int device_;
};

}  // namespace

cuda::Kernels& simulated_kernels(int device) {
  static auto* const of_devices = [] {
    auto* const made = new std::vector<RowKernels>;
    for (int i = 0; i < kNumDevices; ++i) made->emplace_back(i);
    return made;
  }();
  return of_devices->at(static_cast<size_t>(device));
}

}  // namespace longspan::testing::accelerator
