#include "longspan/kernels/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <malloc.h>

#include <cstdlib>
#include <limits>

#include "longspan/cpu/capability.h"
#include "longspan/cpu/gemm_tiles.h"
#include "longspan/kernels/tiled_gemm.h"

namespace longspan {

TEST_CASE("tiled gemms equal fp64 products for every stride, edge and number of threads") {
  const GemmTiles* tiles =
      widest_cpu_capability() >= CpuCapability::kAvx2 ? avx2_gemm_tiles() : nullptr;
  if (tiles == nullptr) return;
  at::manual_seed(3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // Around the sizes of a micro-tile (6 x 16) and of blocks (192 rows, depth 256, 2048 columns).
  for (const auto& [m, k, n] :
       {std::tuple{1, 1, 1}, std::tuple{6, 8, 16}, std::tuple{7, 9, 17}, std::tuple{193, 257, 31},
        std::tuple{400, 300, 45}, std::tuple{35, 33, 2065}, std::tuple{2, 520, 4097}}) {
    const at::Tensor a = at::randn({m, k}), b = at::randn({k, n});
    const at::Tensor want = a.to(at::kDouble).mm(b.to(at::kDouble));
    // A sum of k rounded products, relative to the sum of their sizes.
    const at::Tensor bound =
        (k + 2) * 6.0e-8 * a.to(at::kDouble).abs().mm(b.to(at::kDouble).abs()) + 1e-30;
    const auto right = [&](const at::Tensor& c, double scale = 1.0) {
      return ((c.to(at::kDouble) - scale * want).abs() <= (scale + 1) * bound).all().item<bool>();
    };
    const at::Tensor as[] = {a, a.t().contiguous().t(), at::stack({a, a}, 2).select(2, 0)};
    const at::Tensor bs[] = {b, b.t().contiguous().t(), at::stack({b, b}, 2).select(2, 0)};
    for (const at::Tensor& left : as)
      for (const at::Tensor& other : bs) {
        // The numbers that were there are not read, and those beside c not touched.
        const at::Tensor wide = at::full({m + 2, n + 3}, nan, a.options());
        const at::Tensor c = wide.narrow(0, 1, m).narrow(1, 2, n);
        tiled_gemm_out(c, left, other, 1.0, /*add=*/false, *tiles);
        CHECK(right(c));
        CHECK(wide.isnan().sum().item<int64_t>() == (m + 2) * (n + 3) - m * n);
        const at::Tensor columns = at::zeros({n, m}).t();
        tiled_gemm_out(columns, left, other, 1.0, /*add=*/true, *tiles);
        tiled_gemm_out(columns, left, other, 0.5, /*add=*/true, *tiles);
        CHECK(right(columns, 1.5));
      }
    const at::Tensor by_some = at::empty({m, n}), by_one = at::empty({m, n});
    tiled_gemm_out(by_some, a, b, 1.0, /*add=*/false, *tiles);
    const int num_threads = at::get_num_threads();
    at::set_num_threads(1);
    tiled_gemm_out(by_one, a, b, 1.0, /*add=*/false, *tiles);
    at::set_num_threads(num_threads);
    CHECK(by_one.equal(by_some));
  }
}

TEST_CASE("gemm and add_gemm_ equal fp64 products for every stride and dtype") {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    // Relative to the norm, a product of n random terms has a rounding error of about epsilon;
    // times 4 for the order of summation.
    const double tolerance = 4 * (dtype == at::kFloat    ? 1.2e-7
                                  : dtype == at::kDouble ? 2.3e-16
                                                         : 7.9e-3);
    for (const auto& [m, k, n] :
         {std::tuple{33, 70, 17}, std::tuple{1, 5, 1}, std::tuple{5000, 8, 450}}) {
      const at::Tensor a = at::randn({m, k}).to(dtype), b = at::randn({k, n}).to(dtype);
      const at::Tensor want = a.to(at::kDouble).mm(b.to(at::kDouble));
      const auto error = [&](const at::Tensor& x) {
        return ((x.to(at::kDouble) - want).norm() / want.norm()).item<double>();
      };
      CHECK(error(gemm(a, b)) < tolerance);
      CHECK(error(gemm(a.t().contiguous().t(), b)) < tolerance);
      CHECK(error(gemm(a, b.t().contiguous().t())) < tolerance);
      at::Tensor wide = at::full({m + 2, n + 3}, 5.0, a.options());
      CHECK(error(gemm_out(wide.narrow(0, 1, m).narrow(1, 2, n), a, b)) < tolerance);
      CHECK(wide.select(0, 0).eq(5).all().item<bool>());
      CHECK(wide.select(1, 1).eq(5).all().item<bool>());
      at::Tensor c = at::zeros({m, n}, a.options());
      add_gemm_(c, a, b);
      CHECK(error(c) < tolerance);
      add_gemm_(c, a, b);
      CHECK(error(c / 2) < tolerance);
    }
  }
}

TEST_CASE("gemms of six hundred shapes leave no more behind than three hundred") {
  const auto in_use = [] { return static_cast<double>(mallinfo2().uordblks) / (1 << 20); };  // MiB
  const at::Tensor b = at::ones({64, 32});
  const auto multiply = [&](int64_t from, int64_t to) {
    for (int64_t m = from; m < to; ++m) gemm(at::ones({m, 64}), b);
  };
  multiply(1, 300);
  const double before = in_use();
  multiply(300, 600);
  CHECK(in_use() - before < 5);
}

TEST_CASE("gemms of shapes that do not recur are ATen's, unless another library is named") {
  if (std::getenv(kGemmVariable) != nullptr) return;
  at::manual_seed(2);
  // Long sums, for which two libraries hardly give the same bits.
  const at::Tensor a = at::randn({77, 1000}), b = at::randn({1000, 130});
  if (gemm_library() == "own AVX2 tiles") return;  // they compile nothing
  CHECK(gemm(a, b, GemmShapes::kVarying).equal(at::mm(a, b)));
  at::Tensor c = at::zeros({77, 130});
  CHECK(add_gemm_(c, a, b, 1.0, GemmShapes::kVarying).equal(at::zeros({77, 130}).addmm_(a, b)));
}

TEST_CASE("an empty gemm is empty or zero") {
  CHECK(gemm(at::ones({0, 3}), at::ones({3, 2})).sizes() == at::IntArrayRef({0, 2}));
  CHECK(gemm(at::ones({2, 0}), at::ones({0, 3})).abs().sum().item<double>() == 0);
}

}  // namespace longspan
