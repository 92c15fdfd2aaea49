#include "longspan/models/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

namespace longspan {
namespace {

/// torch's own entry to oneDNN: result = beta result + alpha a b. It is exported, but no header of
/// it is shipped, so it is looked up by name; a torch that lacks it falls back to at::mm.
using OneDnnProduct = void (*)(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result,
                               float beta, float alpha);

OneDnnProduct find_onednn_product() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_is("amd") || !__builtin_cpu_supports("avx512f")) return nullptr;
  return reinterpret_cast<OneDnnProduct>(
      dlsym(RTLD_DEFAULT, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"));
#else
  return nullptr;
#endif
}

/// Of a product that is added to more precise numbers: large enough for full speed.
constexpr int64_t kPartBytes = int64_t{16} << 20, kMinPartRows = 256;

/// Null when at::mm is as good or the operands are not oneDNN's business.
OneDnnProduct onednn_for(const at::Tensor& a, const at::Tensor& b) {
  static const OneDnnProduct onednn = find_onednn_product();
  const bool fits = a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
                    a.numel() > 0 && b.numel() > 0;
  return fits ? onednn : nullptr;
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!onednn_for(a, b)) return at::mm(a, b);
  return product_out(at::empty({a.size(0), b.size(1)}, a.options()), a, b);
}

at::Tensor product_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b) {
  if (const OneDnnProduct onednn = onednn_for(a, b)) {
    onednn(a, b, c, 0.0f, 1.0f);
  } else {
    at::mm_out(c, a, b);
  }
  return c;
}

at::Tensor add_product_(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (c.scalar_type() != a.scalar_type()) {
    // A sum of two dtypes makes a copy of the smaller one first.
    const auto row_bytes = b.size(1) * static_cast<int64_t>(b.itemsize() + c.itemsize());
    const int64_t part = std::max(kMinPartRows, kPartBytes / std::max<int64_t>(1, row_bytes));
    for (int64_t begin = 0; begin < c.size(0); begin += part) {
      const int64_t size = std::min(part, c.size(0) - begin);
      c.narrow(0, begin, size).add_(product(a.narrow(0, begin, size), b), scale);
    }
    return c;
  }
  if (const OneDnnProduct onednn = onednn_for(a, b)) {
    onednn(a, b, c, 1.0f, static_cast<float>(scale));
  } else {
    c.addmm_(a, b, /*beta=*/1.0, /*alpha=*/scale);
  }
  return c;
}

void bound_compiled_products() {
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256", /*overwrite=*/0);
  setenv("LRU_CACHE_CAPACITY", "128", /*overwrite=*/0);
}

}  // namespace longspan
