// Dropout as a GPU kernel gives the same bits as ATen's operators.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "longspan/kernels/cuda_rows.h"
#include "longspan/kernels/dropout.h"
#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::for_shapes;
using testing::on_gpu;
using testing::random;
using testing::room;

TEST_CASE("cuda rows: dropout has the bits of ATen's operators") {
  const AnyKernels kernels;
  at::manual_seed(8);
  constexpr double kShare = 0.35;
  constexpr uint64_t kSeed = 0x9876543210fedcbaull;
  const auto limit = static_cast<int64_t>(kShare * std::ldexp(1.0, 53));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for_shapes([&](int64_t T, int64_t D, bool is_aligned) {
      const at::Tensor x = random({T, D}, dtype, is_aligned);
      x.view({-1})[0] = INFINITY;  // stays visible where it is dropped: inf * 0 = NaN
      const at::Tensor keys = at::randint(INT64_MIN / 2, INT64_MAX / 2, {T}, at::kLong);
      const at::Tensor keys_there = keys.to(x.device());
      at::Tensor y = room({T, D}, dtype, is_aligned);
      REQUIRE(cuda_rows::drop_out(y, x, keys_there, kSeed, limit, 1 / (1 - kShare)));
      const at::Tensor expected = Dropout{kShare, kSeed, keys}.apply(x.cpu());
      CHECK(at::allclose(y.cpu(), expected, 0, 0, /*equal_nan=*/true));
    });
  }
}

TEST_CASE("cuda rows: dropout of no rows, and what the kernel does not take") {
  const AnyKernels kernels;
  const at::Tensor no_keys = at::empty({0}, on_gpu(at::kLong));
  at::Tensor none = at::empty({0, 5}, on_gpu(at::kFloat));
  CHECK(cuda_rows::drop_out(none, none, no_keys, 1, 1, 1));
  const at::Tensor keys = at::arange(3, on_gpu(at::kLong)),
                   x = at::ones({3, 4}, on_gpu(at::kFloat));
  at::Tensor wide = at::empty({3, 4}, on_gpu(at::kDouble)), y = at::empty_like(x);
  CHECK(!cuda_rows::drop_out(wide, x, keys, 1, 1, 1));
  CHECK(!cuda_rows::drop_out(y, x.t().contiguous().t(), keys, 1, 1, 1));
}

}  // namespace
}  // namespace longspan
