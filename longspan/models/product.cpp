#include "longspan/models/product.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <optional>

namespace longspan {
namespace {

using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, std::string_view,
                                   at::List<std::optional<at::Scalar>>,
                                   std::optional<std::string_view>);

/// oneDNN's x w^T as torch registers it; nullopt in a torch without oneDNN.
const std::optional<c10::TypedOperatorHandle<LinearPointwise>>& onednn_linear() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<LinearPointwise>> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema) return std::nullopt;
    return schema->typed<LinearPointwise>();
  }();
  return handle;
}

bool mkl_is_slow_here() {
#if defined(__x86_64__)
  static const bool slow = [] {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
  }();
  return slow;
#else
  return false;
#endif
}

bool use_onednn(const at::Tensor& a, const at::Tensor& b) {
  return mkl_is_slow_here() && a.is_cpu() && a.scalar_type() == at::kFloat &&
         b.scalar_type() == at::kFloat && a.numel() > 0 && b.numel() > 0 &&
         onednn_linear().has_value();
}

at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b) {
  return onednn_linear()->call(a, b.t(), std::nullopt, "none",
                               at::List<std::optional<at::Scalar>>(), std::nullopt);
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return use_onednn(a, b) ? onednn_product(a, b) : at::mm(a, b);
}

void add_product_(at::Tensor c, const at::Tensor& a, const at::Tensor& b) {
  if (!use_onednn(a, b)) {
    c.addmm_(a, b);
    return;
  }
  // The product has no accumulating form there: some rows at a time, so that the temporary stays in
  // the cache.
  constexpr int64_t kTemporaryFloats = int64_t{1} << 21;
  const int64_t rows = std::max<int64_t>(64, kTemporaryFloats / std::max<int64_t>(1, c.size(1)));
  for (int64_t i = 0; i < c.size(0); i += rows) {
    const int64_t count = std::min(rows, c.size(0) - i);
    c.narrow(0, i, count).add_(onednn_product(a.narrow(0, i, count), b));
  }
}

}  // namespace longspan
