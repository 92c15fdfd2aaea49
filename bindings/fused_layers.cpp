// Operations between the products of a layer, each in one pass over memory (kernels/fused_rows.h).
// D: model dim, I: intermediate dim. "..." is any number of dimensions.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "bindings/registration.h"
#include "bindings/second_derivative.h"
#include "bindings/traced.h"
#include "longspan/base/user_error.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

/// Numbers of a part of the rows, which stays in a core's cache.
constexpr int64_t kNumbersInCache = 32768;

at::Tensor in_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

[[noreturn]] void refuse_rows(const char* function, const at::Tensor& x, const at::Tensor& y,
                              const char* limit) {
  throw UserError(fmt::format("{}: {} {} and {} {}: {}", function, c10::toString(x.scalar_type()),
                              x.sizes(), c10::toString(y.scalar_type()), y.sizes(), limit));
}

/// Whether storage_type.h has the dtypes, and one precision of arithmetic serves both.
bool are_storable(const at::Tensor& x, const at::Tensor& y) {
  const auto is_stored = [](at::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble;
  };
  return is_stored(x.scalar_type()) && is_stored(y.scalar_type()) &&
         arithmetic_dtype(x.scalar_type()) == arithmetic_dtype(y.scalar_type()) &&
         x.device() == y.device();
}

/// Returns weight * x / sqrt(mean(x^2) + eps) of the last dimension, [..., D], and the reciprocal
/// root of each row, fp32 or fp64.
TwoTensors fused_rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  return for_python([&]() -> TwoTensors {
    const at::NoGradGuard no_grad;
    if (weight_D.dim() != 1 || x.dim() < 1 || x.size(-1) != weight_D.size(0)) {
      refuse_rows("rms_norm", x, weight_D, "x must be [..., dim] and the weight [dim]");
    }
    if (!are_storable(x, weight_D)) {
      refuse_rows("rms_norm", x, weight_D,
                  "both must be fp32 or bf16, or both fp64, on one device");
    }
    const NormalizedRows rows =
        normalize_rows(in_rows(x), weight_D, eps, at::result_type(x, weight_D));
    return {rows.y_TD.view(x.sizes()), rows.rstd_T};
  });
}

TwoTensors fused_rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& rstd_T, const at::Tensor& weight_D) {
  return for_python([&]() -> TwoTensors {
    const at::NoGradGuard no_grad;
    const at::Tensor dweight_D = at::zeros(weight_D.sizes(), rstd_T.options());
    const at::Tensor dx_TD =
        norm_backward(in_rows(dy), in_rows(x), rstd_T, weight_D, {}, dweight_D);
    return {dx_TD.view(x.sizes()), dweight_D.to(weight_D.scalar_type())};
  });
}

/// Returns silu(gate) * up, [..., I].
at::Tensor fused_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return for_python([&] {
    const at::NoGradGuard no_grad;
    if (gate.dim() < 1 || gate.sizes() != up.sizes() || gate.scalar_type() != up.scalar_type()) {
      refuse_rows("swiglu", gate, up, "both must have the same dtype and the same sizes");
    }
    if (!are_storable(gate, up)) {
      refuse_rows("swiglu", gate, up, "both must be fp32, bf16 or fp64, on one device");
    }
    const at::Tensor gate_TI = in_rows(gate);
    at::Tensor act_TI = at::empty_like(gate_TI);
    swiglu_out(act_TI, gate_TI, in_rows(up));
    return act_TI.view(gate.sizes());
  });
}

TwoTensors fused_swiglu_backward(const at::Tensor& dact, const at::Tensor& gate,
                                 const at::Tensor& up) {
  return for_python([&]() -> TwoTensors {
    const at::NoGradGuard no_grad;
    const at::Tensor dact_TI = in_rows(dact), gate_TI = in_rows(gate), up_TI = in_rows(up);
    at::Tensor dgate_TI = at::empty_like(gate_TI), dup_TI = at::empty_like(up_TI);
    const int64_t T = gate_TI.size(0), I = std::max<int64_t>(gate_TI.size(1), 1);
    // The kernel works in place. On a CPU the copies of a part of the rows stay in the cache.
    const int64_t rows =
        gate.is_cpu() ? std::max<int64_t>(kNumbersInCache / I, 1) * at::get_num_threads() : T;
    for (int64_t begin = 0; begin < T; begin += rows) {
      const int64_t size = std::min(rows, T - begin);
      at::Tensor dgate_CI = dgate_TI.narrow(0, begin, size), dup_CI = dup_TI.narrow(0, begin, size);
      dgate_CI.copy_(gate_TI.narrow(0, begin, size));
      dup_CI.copy_(up_TI.narrow(0, begin, size));
      at::Tensor act_CI = dact_TI.narrow(0, begin, size).clone();
      swiglu_backward_(dgate_CI, dup_CI, act_CI);
    }
    return {dgate_TI.view(gate.sizes()), dup_TI.view(up.sizes())};
  });
}

struct RecordedNorm : torch::autograd::Function<RecordedNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& weight_D, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [y, rstd_T] =
        operator_named<decltype(fused_rms_norm)>("longspan::rms_norm").call(x, weight_D, eps);
    ctx->save_for_backward({x, weight_D, rstd_T});
    ctx->mark_non_differentiable({rstd_T});
    return {y, rstd_T};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivative("rms_norm");
    const auto saved = ctx->get_saved_variables();
    const auto [dx, dweight_D] =
        operator_named<decltype(fused_rms_norm_backward)>("longspan::rms_norm_backward")
            .call(gradients[0], saved[0], saved[2], saved[1]);
    return {dx, dweight_D, {}};
  }
};

TwoTensors rms_norm_and_record(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  const variable_list both = RecordedNorm::apply(x, weight_D, eps);
  return {both[0], both[1]};
}

struct RecordedGate : torch::autograd::Function<RecordedGate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({gate, up});
    return operator_named<decltype(fused_swiglu)>("longspan::swiglu").call(gate, up);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_derivative("swiglu");
    const auto saved = ctx->get_saved_variables();
    const auto [dgate, dup] =
        operator_named<decltype(fused_swiglu_backward)>("longspan::swiglu_backward")
            .call(gradients[0], saved[0], saved[1]);
    return {dgate, dup};
  }
};

at::Tensor swiglu_and_record(const at::Tensor& gate, const at::Tensor& up) {
  return RecordedGate::apply(gate, up);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(longspan, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def(
      "rms_norm_backward(Tensor grad, Tensor x, Tensor rstd, Tensor weight) -> (Tensor, Tensor)");
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(longspan, Autograd, library) {
  library.impl("rms_norm", rms_norm_and_record);
  library.impl("swiglu", swiglu_and_record);
}
TORCH_LIBRARY_IMPL(longspan, CPU, library) {
  library.impl("rms_norm", fused_rms_norm);
  library.impl("rms_norm_backward", fused_rms_norm_backward);
  library.impl("swiglu", fused_swiglu);
  library.impl("swiglu_backward", fused_swiglu_backward);
}
TORCH_LIBRARY_IMPL(longspan, CUDA, library) {
  library.impl("rms_norm", fused_rms_norm);
  library.impl("rms_norm_backward", fused_rms_norm_backward);
  library.impl("swiglu", fused_swiglu);
  library.impl("swiglu_backward", fused_swiglu_backward);
}

}  // namespace longspan
