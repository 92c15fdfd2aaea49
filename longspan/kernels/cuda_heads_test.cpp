// Heads that a GPU kernel rotates, or norms and rotates, against fp64. Tolerances: see
// cuda_rows_test.cpp. T: rows, N: heads, H: head dim, F: rotated pairs.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "longspan/cuda/kernels.h"
#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/composed_rows.h"
#include "longspan/kernels/cuda_rows.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::check_within;
using testing::fp32;
using testing::kNumRows;
using testing::kRounding;
using testing::kRowSum;
using testing::last_rounding;
using testing::most_numbers;
using testing::norm_of;
using testing::on_gpu;
using testing::random;
using testing::room;
using testing::wide;

constexpr double kEps = 1e-6;
/// Roundings of 1 / rms: the root halves those of the mean of squares.
constexpr double kOfRstd = (kRowSum + 1) / 2 + 4;
/// Roundings of a rotation: two products and their sum.
constexpr double kOfRotation = 3;

struct Shape {
  int64_t T, N, H, F;
  bool is_aligned;
};

/// Calls check(shape) for heads of odd sizes, with partial rotation, and of several warps.
template <typename Check>
void for_heads(Check&& check) {
  struct Heads {
    int64_t N, H, F;
  };
  for (const Heads& heads :
       {Heads{3, 10, 5}, Heads{3, 11, 3}, Heads{32, 128, 64}, Heads{8, 256, 32}, Heads{1, 64, 32},
        Heads{2, 72, 32}, Heads{2, 64, 16}, Heads{1, 520, 100}}) {
    for (const int64_t T : kNumRows) {
      if (T * heads.N * heads.H > most_numbers()) continue;
      for (const bool is_aligned : {true, false}) {
        CAPTURE(heads.N);
        CAPTURE(heads.H);
        CAPTURE(heads.F);
        CAPTURE(T);
        CAPTURE(is_aligned);
        check(Shape{T, heads.N, heads.H, heads.F, is_aligned});
      }
    }
  }
}

RotaryTable table_of(const Shape& shape, RotaryPairs pairs = RotaryPairs::kHalves) {
  const at::Tensor angles = at::rand({shape.T, shape.F}, on_gpu(at::kFloat)) * 6;
  return {angles.cos(), angles.sin(), pairs};
}
RotaryTable wide(const RotaryTable& table) {
  return {testing::wide(table.cos_TF), testing::wide(table.sin_TF), table.pairs};
}

/// Returns |x cos| + |y sin| of the pairs of heads; of other numbers, their sizes. In fp64.
at::Tensor sizes_of_rotation(const at::Tensor& x, const RotaryTable& table) {
  const RotaryTable sizes{table.cos_TF.abs(), table.sin_TF.abs(), table.pairs};
  return at::maximum(composed::rotate(x.abs(), sizes, /*inverse=*/false),
                     composed::rotate(x.abs(), sizes, /*inverse=*/true));
}

TEST_CASE("cuda rows: rotation, of all of a head and of a part, into other memory and in place") {
  const AnyKernels kernels;
  at::manual_seed(4);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
      for_heads([&](const Shape& shape) {
        const auto [T, N, H, F, is_aligned] = shape;
        const RotaryTable table = table_of(shape, pairs);
        // The first numbers of longer heads, like heads with a gate.
        const at::Tensor longer = random({T, N, H + 8}, dtype, is_aligned);
        for (const at::Tensor& x : {random({T, N, H}, dtype, is_aligned), longer.narrow(2, 0, H)}) {
          for (const bool inverse : {false, true}) {
            at::Tensor y = room({T, N, H}, dtype, is_aligned);
            REQUIRE(cuda_rows::rotate_out(y, x, table, inverse));
            const at::Tensor exact = composed::rotate(wide(x), wide(table), inverse);
            check_within(y, exact,
                         kOfRotation * kRounding * sizes_of_rotation(wide(x), wide(table)) +
                             last_rounding(dtype) * exact.abs());
            CHECK(at::equal(y.narrow(2, 2 * F, H - 2 * F), x.narrow(2, 2 * F, H - 2 * F)));
            if (!x.is_contiguous()) continue;
            at::Tensor in_place = room({T, N, H}, dtype, is_aligned).copy_(x);
            REQUIRE(cuda_rows::rotate_out(in_place, in_place, table, inverse));
            CHECK(at::equal(in_place, y));
          }
        }
      });
    }
  }
}

/// Norm and rotation of heads by ATen's operators, in the dtype of x.
at::Tensor composed_heads(const at::Tensor& x, const at::Tensor& weight, const RotaryTable& table) {
  const at::Tensor rows = heads_as_rows(x), rstd = composed::reciprocal_rms(rows, kEps);
  return composed::rotate(composed::scale_rows(rows, rstd, weight, x.scalar_type()).view(x.sizes()),
                          table,
                          /*inverse=*/false);
}

at::Tensor composed_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const RotaryTable& table, const at::Tensor& dweight) {
  const at::Tensor rows = heads_as_rows(x), rstd = composed::reciprocal_rms(rows, kEps);
  const at::Tensor dnormed = composed::rotate(dy, table, /*inverse=*/true);
  return composed::norm_backward(heads_as_rows(dnormed), rows, rstd, weight, {}, dweight)
      .view(x.sizes());
}

struct Dtypes {
  at::ScalarType x, weight;
};
constexpr Dtypes kDtypes[] = {{at::kFloat, at::kFloat},
                              {at::kFloat, at::kBFloat16},
                              {at::kBFloat16, at::kBFloat16},
                              {at::kBFloat16, at::kFloat}};

TEST_CASE("cuda rows: heads that are normed and rotated, in place and as parts of longer ones") {
  const AnyKernels kernels;
  at::manual_seed(5);
  for (const Dtypes& dtypes : kDtypes) {
    for_heads([&](const Shape& shape) {
      const auto [T, N, H, F, is_aligned] = shape;
      const RotaryTable table = table_of(shape);
      const at::Tensor x = random({T, N, H}, dtypes.x, is_aligned, 3),
                       weight = random({H}, dtypes.weight, is_aligned);
      const at::Tensor exact = composed_heads(wide(x), wide(weight), wide(table));
      at::Tensor rstd, y = room({T, N, H}, dtypes.x, is_aligned);
      REQUIRE(cuda_rows::norm_rotate_out(y, &rstd, x, weight, table, kEps));
      const at::Tensor rows = heads_as_rows(wide(x)),
                       exact_rstd = composed::reciprocal_rms(rows, kEps),
                       normed = rows * exact_rstd.unsqueeze(1) * wide(weight),
                       bound = (kOfRstd + 2 + kOfRotation) * kRounding *
                                   sizes_of_rotation(normed.view(x.sizes()), wide(table)) +
                               last_rounding(dtypes.x) * exact.abs();
      check_within(y, exact, bound);
      check_within(rstd, exact_rstd, kOfRstd * kRounding * exact_rstd);
      at::Tensor in_place = room({T, N, H}, dtypes.x, is_aligned).copy_(x);
      REQUIRE(cuda_rows::norm_rotate_out(in_place, nullptr, in_place, weight, table, kEps));
      CHECK(at::equal(in_place, y));
      // The first numbers of longer heads; the others stay.
      const at::Tensor longer = random({T, N, H + 8}, dtypes.x, is_aligned),
                       before = longer.clone();
      at::Tensor part = longer.narrow(2, 0, H);
      part.copy_(x);
      for (const at::Tensor& from : {part, x}) {
        REQUIRE(cuda_rows::norm_rotate_out(part, nullptr, from, weight, table, kEps));
        check_within(part, exact, bound);
        CHECK(at::equal(longer.narrow(2, H, 8), before.narrow(2, H, 8)));
        part.fill_(NAN);
      }
    });
  }
}

TEST_CASE("cuda rows: gradients of heads that are normed and rotated, the same bits each time") {
  const AnyKernels kernels;
  at::manual_seed(6);
  for (const Dtypes& dtypes : kDtypes) {
    for_heads([&](const Shape& shape) {
      const auto [T, N, H, F, is_aligned] = shape;
      const RotaryTable table = table_of(shape);
      const at::Tensor weight = random({H}, dtypes.weight, is_aligned),
                       longer_x = random({T, N, H + 8}, dtypes.x, is_aligned, 3),
                       longer_dy = random({T, N, H + 8}, dtypes.x, is_aligned);
      for (const bool are_parts : {false, true}) {
        CAPTURE(are_parts);
        const auto heads = [&](const at::Tensor& longer) {
          const at::Tensor part = longer.narrow(2, 0, H);
          return are_parts ? part : room({T, N, H}, dtypes.x, is_aligned).copy_(part);
        };
        const at::Tensor x = heads(longer_x), dy = heads(longer_dy);
        const at::Tensor before = at::randn({H}, on_gpu(at::kFloat));
        const at::Tensor exact_dweight = wide(before);
        const at::Tensor exact =
            composed_backward(wide(dy), wide(x), wide(weight), wide(table), exact_dweight);
        const at::Tensor rows = heads_as_rows(wide(x)),
                         exact_rstd = composed::reciprocal_rms(rows, kEps),
                         r = exact_rstd.unsqueeze(1),
                         turned = heads_as_rows(sizes_of_rotation(wide(dy), wide(table))),
                         parts = turned * wide(weight).abs(),
                         sizes = r * parts + rows.abs() * r.pow(3) *
                                                 (parts * rows.abs()).mean(1, /*keepdim=*/true);
        // r has its roundings three times.
        const at::Tensor bound =
            (kRowSum + 3 * kOfRstd + kOfRotation + 10) * kRounding * sizes.view(x.sizes()) +
            last_rounding(dtypes.x) * exact.abs();
        const at::Tensor bound_of_dweight =
            (testing::roundings_of_weight_sum(T * N) + kOfRstd + kOfRotation + 3) * kRounding *
            (wide(before).abs() + (turned * rows * r).abs().sum(0));
        for (const at::Tensor& rstd : {at::Tensor(), fp32(exact_rstd)}) {
          CAPTURE(rstd.defined());
          at::Tensor dx = room({T, N, H}, dtypes.x, is_aligned), dweight = before.clone();
          REQUIRE(
              cuda_rows::norm_rotate_backward_out(dx, dy, x, rstd, weight, table, kEps, dweight));
          check_within(dx, exact, bound);
          check_within(dweight, exact_dweight, bound_of_dweight);
          at::Tensor again = room({T, N, H}, dtypes.x, is_aligned), dweight_again = before.clone();
          REQUIRE(cuda_rows::norm_rotate_backward_out(again, dy, x, rstd, weight, table, kEps,
                                                      dweight_again));
          CHECK(at::equal(again, dx));
          CHECK(at::equal(dweight_again, dweight));
          // A frozen weight.
          at::Tensor frozen = room({T, N, H}, dtypes.x, is_aligned);
          REQUIRE(
              cuda_rows::norm_rotate_backward_out(frozen, dy, x, rstd, weight, table, kEps, {}));
          check_within(frozen, exact, bound);
        }
      }
    });
  }
}

TEST_CASE("cuda rows: no heads, heads of zeros, and heads that the kernel does not take") {
  const AnyKernels kernels;
  at::manual_seed(7);
  const auto takes = [](const at::Tensor& x, const at::Tensor& weight, const RotaryTable& table) {
    at::Tensor y = room(x.sizes(), x.scalar_type(), true), dx = at::empty_like(y), rstd;
    const at::Tensor dweight = at::ones({x.size(2)}, on_gpu(at::kFloat));
    const bool forward = cuda_rows::norm_rotate_out(y, &rstd, x, weight, table, kEps);
    CHECK(cuda_rows::norm_rotate_backward_out(dx, x, x, {}, weight, table, kEps, dweight) ==
          forward);
    if (x.numel() == 0 || !forward) CHECK(dweight.eq(1).all().item<bool>());
    if (forward) CHECK(rstd.numel() == x.size(0) * x.size(1));
    if (forward) CHECK((y.isfinite().all().item<bool>() && dx.isfinite().all().item<bool>()));
    return forward;
  };
  const Shape shape{3, 2, 16, 8, true};
  const at::Tensor x = random({3, 2, 16}, at::kBFloat16, true),
                   weight = random({16}, at::kFloat, true);
  CHECK(takes(x, weight, table_of(shape)));
  CHECK(takes(at::zeros_like(x), weight, table_of(shape)));
  CHECK(takes(x.narrow(0, 0, 0), weight, table_of({0, 2, 16, 8, true})));
  CHECK_FALSE(takes(x, weight, table_of(shape, RotaryPairs::kNeighbours)));
  CHECK_FALSE(takes(wide(x), weight, table_of(shape)));
  CHECK_FALSE(takes(x, weight, wide(table_of(shape))));
  CHECK_FALSE(takes(x.transpose(1, 2).contiguous().transpose(1, 2), weight, table_of(shape)));
  // The longest head that a block's threads hold, and a longer one.
  constexpr int64_t kMost = 2 * cuda::kPairsOfThread * cuda::kBlockThreads;
  for (const auto& [H, is_taken] : {std::pair{kMost, true}, {kMost + 2, false}}) {
    CAPTURE(H);
    const at::Tensor longest = random({1, 1, H}, at::kFloat, /*is_aligned=*/false);
    const at::Tensor weight_H = random({H}, at::kFloat, /*is_aligned=*/false);
    CHECK(takes(longest, weight_H, table_of({1, 1, H, H / 2, false})) == is_taken);
  }
}

TEST_CASE("cuda rows: heads that no kernel takes are normed and then rotated") {
  at::manual_seed(8);
  const Shape shape{5, 2, 16, 6, true};
  const at::Tensor x = random({5, 2, 16}, at::kDouble, true, 3),
                   weight = random({16}, at::kDouble, true),
                   dy = random({5, 2, 16}, at::kDouble, true);
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    const RotaryTable table = wide(table_of(shape, pairs));
    at::Tensor rstd, made, in_place = x.clone();
    norm_rotate_out(made, &rstd, x, weight, table, kEps);
    norm_rotate_out(in_place, nullptr, in_place, weight, table, kEps);
    CHECK(at::equal(in_place, made));
    const at::Tensor expected = composed_heads(x, weight, table);
    CHECK(norm_of(made - expected) <= 1e-14 * norm_of(expected));
    const at::Tensor dweight = at::zeros({16}, on_gpu(at::kDouble)),
                     other_dweight = at::zeros_like(dweight);
    const at::Tensor dx = norm_rotate_backward(dy, x, rstd, weight, table, kEps, dweight),
                     other = composed_backward(dy, x, weight, table, other_dweight);
    CHECK(norm_of(dx - other) <= 1e-14 * (norm_of(other) + norm_of(dy)));
    CHECK(norm_of(dweight - other_dweight) <= 1e-14 * norm_of(other_dweight));
    CHECK(at::equal(norm_rotate_backward(dy, x, {}, weight, table, kEps, {}), dx));
  }
}

}  // namespace
}  // namespace longspan
