#include "longspan/kernels/dropout.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "longspan/kernels/cuda_rows.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

/// The finalizer of splitmix64.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// The same for int64 tensors. Their right shift copies the sign, which is masked away.
at::Tensor mix(at::Tensor x) {
  const auto shifted = [](const at::Tensor& value, int64_t by) {
    return value.__rshift__(by).bitwise_and_((int64_t{1} << (64 - by)) - 1);
  };
  x = x.bitwise_xor(shifted(x, 30)).mul_(static_cast<int64_t>(0xbf58476d1ce4e5b9ull));
  x = x.bitwise_xor(shifted(x, 27)).mul_(static_cast<int64_t>(0x94d049bb133111ebull));
  return x.bitwise_xor(shifted(x, 31));
}

constexpr int64_t kHashes = int64_t{1} << 53;  // a hash is uniform in as many values

/// Calls body(begin, hash_CI) for chunks of rows.
template <typename Body>
void for_hashes(const at::Tensor& keys_T, int64_t num_columns, uint64_t seed, const Body& body) {
  const int64_t T = keys_T.numel();
  const at::Tensor columns_I = mix(at::arange(1, num_columns + 1, keys_T.options())
                                       .mul_(static_cast<int64_t>(0x9e3779b97f4a7c15ull)));
  const int64_t chunk = device_sizes(!keys_T.is_cpu()).dropout.rows(num_columns);
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const int64_t size = std::min(chunk, T - begin);
    const at::Tensor rows_C = mix(keys_T.narrow(0, begin, size) + static_cast<int64_t>(seed));
    body(begin, mix(rows_C.unsqueeze(1) + columns_I.unsqueeze(0)).bitwise_and_(kHashes - 1));
  }
}

}  // namespace

uint64_t mix_seed(uint64_t seed, uint64_t number) {
  return mix(seed + 0x9e3779b97f4a7c15ull * (number + 1));
}

at::Tensor Dropout::apply(const at::Tensor& x_TI) const {
  if (!active()) return x_TI;
  c10::NoGradGuard no_grad;
  const int64_t T = x_TI.size(0), I = x_TI.size(1);
  TORCH_CHECK(keys_T.numel() == T, "dropout: keys of ", keys_T.numel(), " rows for ", T);
  at::Tensor y_TI = at::empty_like(x_TI);
  // Elements whose hash is below p * kHashes are dropped.
  const auto limit = static_cast<int64_t>(p * static_cast<double>(kHashes));
  const double scale = 1.0 / (1.0 - p);
  if (!x_TI.is_cpu() && cuda_rows::drop_out(y_TI, x_TI, keys_T, seed, limit, scale)) return y_TI;
  for_hashes(keys_T, I, seed, [&](int64_t begin, const at::Tensor& hash_CI) {
    const int64_t size = hash_CI.size(0);
    const at::Tensor kept_CI = hash_CI.ge(limit);
    at::Tensor part_CI = y_TI.narrow(0, begin, size);
    at::mul_out(part_CI, x_TI.narrow(0, begin, size) * scale, kept_CI.to(x_TI.scalar_type()));
  });
  return y_TI;
}

void add_uniform_noise_(at::Tensor x_TI, const at::Tensor& keys_T, const at::Tensor& bounds_T,
                        uint64_t seed) {
  const c10::NoGradGuard no_grad;
  for_hashes(keys_T, x_TI.size(1), seed, [&](int64_t begin, const at::Tensor& hash_CI) {
    const int64_t size = hash_CI.size(0);
    const at::Tensor noise_CI = hash_CI.to(at::kDouble)
                                    .mul_(2.0 / static_cast<double>(kHashes))
                                    .sub_(1.0)
                                    .mul_(bounds_T.narrow(0, begin, size).unsqueeze(1));
    x_TI.narrow(0, begin, size).add_(noise_CI.to(x_TI.scalar_type()));
  });
}

}  // namespace longspan
