// Access to rows of tensors, for forward and backward of the chunked gated delta rule.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <type_traits>

namespace longspan::delta_rule {

/// Calls f(pointer) with the tensor's storage type.
template <typename F>
void with_data(const at::Tensor& x, F&& f) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return f(x.mutable_data_ptr<float>());
    case at::kDouble:
      return f(x.mutable_data_ptr<double>());
    case at::kBFloat16:
      return f(x.mutable_data_ptr<c10::BFloat16>());
    default:
      TORCH_CHECK(false, "the gated delta rule takes fp32, bf16 or fp64, not ", x.scalar_type());
  }
}

/// Copies n numbers of row t of x_T.. into `to`. The last dim of x is contiguous.
template <typename A>
void read_row(A* to, const at::Tensor& x, int64_t t, int64_t r, int64_t n) {
  with_data(x, [&](const auto* data) {
    const auto* from = data + t * x.stride(0) + (x.dim() == 3 ? r * x.stride(1) : 0);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
  });
}

template <typename A>
void write_row(const at::Tensor& x, int64_t t, int64_t r, const A* from, int64_t n) {
  with_data(x, [&](auto* data) {
    using S = std::remove_pointer_t<decltype(data)>;
    S* to = data + t * x.stride(0) + (x.dim() == 3 ? r * x.stride(1) : 0);
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<S>(from[i]);
  });
}

template <typename A>
A dot(const A* x, const A* y, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

/// Returns the first n matrices of a batch of any shape [.., I, J].
inline at::Tensor batch(const at::Tensor& x, int64_t n) {
  return x.view({-1, x.size(-2), x.size(-1)}).narrow(0, 0, n);
}

}  // namespace longspan::delta_rule
