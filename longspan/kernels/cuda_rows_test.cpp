// Norms as GPU kernels, against fp64, number by number: the allowed distance is the number of
// roundings on the way to a number, times the sum of its summands' sizes, and one more rounding for
// a bf16 result.
#include "longspan/kernels/cuda_rows.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "longspan/cuda/kernels.h"
#include "longspan/kernels/composed_rows.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::check_within;
using testing::for_shapes;
using testing::fp32;
using testing::has_gpu;
using testing::kRounding;
using testing::kRowSum;
using testing::last_rounding;
using testing::most_numbers;
using testing::on_gpu;
using testing::random;
using testing::room;
using testing::wide;

struct Dtypes {
  at::ScalarType h, y, weight;
};
constexpr Dtypes kDtypes[] = {{at::kFloat, at::kFloat, at::kFloat},
                              {at::kFloat, at::kBFloat16, at::kFloat},
                              {at::kBFloat16, at::kBFloat16, at::kBFloat16},
                              {at::kBFloat16, at::kBFloat16, at::kFloat}};

constexpr double kEps = 1e-6;
/// Roundings of 1 / rms: the root halves those of the mean of squares.
constexpr double kOfRstd = (kRowSum + 1) / 2 + 4;

/// Checks the gradient of a norm with weight w, and of w: r (w dy) - h r^3 mean(w dy h) + residual,
/// and sums over rows.
struct NormGradient {
  at::Tensor exact, exact_dweight, bound, bound_of_dweight;

  /// All in fp64. `of_rstd`: roundings of rstd_T.
  NormGradient(const at::Tensor& dy, const at::Tensor& h, const at::Tensor& rstd_T,
               const at::Tensor& weight, const at::Tensor& residual, const at::Tensor& before,
               double of_rstd)
      : exact_dweight(before.clone()) {
    exact = composed::norm_backward(dy, h, rstd_T, weight, residual, exact_dweight);
    const at::Tensor r = rstd_T.unsqueeze(1), parts = (dy * weight).abs();
    at::Tensor sizes = r * parts + h.abs() * r.pow(3) * (parts * h.abs()).mean(1, true);
    if (residual.defined()) sizes = sizes + residual.abs();
    bound = (kRowSum + 3 * of_rstd + 10) * kRounding * sizes;
    bound_of_dweight = (testing::roundings_of_weight_sum(h.size(0)) + of_rstd + 3) * kRounding *
                       (before.abs() + (dy * h * r).abs().sum(0));
  }
  void check(const at::Tensor& dh) const {
    check_within(dh, exact, bound + last_rounding(dh.scalar_type()) * exact.abs());
  }
  void check_weight(const at::Tensor& dweight) const {
    check_within(dweight, exact_dweight, bound_of_dweight);
  }
};

TEST_CASE("cuda rows: the norm") {
  const AnyKernels kernels;
  at::manual_seed(1);
  for (const Dtypes& dtypes : kDtypes) {
    for_shapes([&](int64_t T, int64_t D, bool is_aligned) {
      const at::Tensor h = random({T, D}, dtypes.h, is_aligned, 3),
                       weight = random({D}, dtypes.weight, is_aligned),
                       residual = random({T, D}, dtypes.y, is_aligned);
      const at::Tensor exact_rstd = composed::reciprocal_rms(wide(h), kEps);
      const at::Tensor exact = composed::scale_rows(wide(h), exact_rstd, wide(weight), at::kDouble);
      at::Tensor rstd, none, y = room({T, D}, dtypes.y, is_aligned);
      REQUIRE(cuda_rows::norm_forward(rstd, none, h, {}, {}, kEps));
      check_within(rstd, exact_rstd, kOfRstd * kRounding * exact_rstd);
      REQUIRE(cuda_rows::norm_forward(rstd, y, h, weight, {}, kEps));
      const double last = last_rounding(dtypes.y);
      const at::Tensor bound = (kOfRstd + 2) * kRounding * exact.abs();
      check_within(y, exact, bound + last * exact.abs());
      // Both at once give the same bits.
      at::Tensor both_rstd, both = room({T, D}, dtypes.y, is_aligned);
      REQUIRE(cuda_rows::norm_forward(both_rstd, both, h, weight, {}, kEps));
      CHECK(at::equal(both_rstd, rstd));
      CHECK(at::equal(both, y));
      // With a residual, which may be the sum's memory.
      const at::Tensor exact_sum = wide(residual) + exact;
      at::Tensor sum_rstd, sum = residual;
      REQUIRE(cuda_rows::norm_forward(sum_rstd, sum, h, weight, residual, kEps));
      check_within(sum, exact_sum, bound + (kRounding + last) * exact_sum.abs());
    });
  }
}

TEST_CASE("cuda rows: the norm's gradient, the same bits each time") {
  const AnyKernels kernels;
  at::manual_seed(2);
  for (const Dtypes& dtypes : kDtypes) {
    for_shapes(
        [&](int64_t T, int64_t D, bool is_aligned) {
          const at::Tensor h = random({T, D}, dtypes.h, is_aligned, 3),
                           dy = random({T, D}, dtypes.y, is_aligned),
                           weight = random({D}, dtypes.weight, is_aligned),
                           residual = random({T, D}, dtypes.h, is_aligned);
          const at::Tensor rstd = composed::reciprocal_rms(fp32(h), kEps);
          for (const at::Tensor& extra : {at::Tensor(), residual}) {
            const at::Tensor before = at::randn({D}, on_gpu(at::kFloat));
            const NormGradient exact(wide(dy), wide(h), wide(rstd), wide(weight), wide(extra),
                                     wide(before), /*of_rstd=*/0);
            at::Tensor dh = room({T, D}, dtypes.h, is_aligned), dweight = before.clone();
            REQUIRE(cuda_rows::norm_backward_out(dh, dy, h, rstd, weight, extra, dweight));
            exact.check(dh);
            exact.check_weight(dweight);
            at::Tensor again = room({T, D}, dtypes.h, is_aligned), dweight_again = before.clone();
            REQUIRE(cuda_rows::norm_backward_out(again, dy, h, rstd, weight, extra, dweight_again));
            CHECK(at::equal(again, dh));
            CHECK(at::equal(dweight_again, dweight));
            // With a frozen weight, into the residual's memory.
            at::Tensor in_place = extra.defined() ? extra : room({T, D}, dtypes.h, is_aligned);
            REQUIRE(cuda_rows::norm_backward_out(in_place, dy, h, rstd, weight, extra, {}));
            exact.check(in_place);
          }
        },
        most_numbers() / 4);  // sums over blocks use many threads
  }
}

TEST_CASE("cuda rows: heads with weights of their own, hundreds of thousands of rows") {
  const AnyKernels kernels;
  at::manual_seed(3);
  for (const int64_t H : {64, 96, 128, 256}) {
    CAPTURE(H);
    const int64_t R = std::min<int64_t>(300'001, most_numbers() / H);
    const at::Tensor h = random({R, H}, at::kBFloat16, true),
                     dy = random({R, H}, at::kBFloat16, true),
                     weight = random({H}, at::kFloat, true);
    at::Tensor rstd, y = room({R, H}, at::kBFloat16, true), dh = room({R, H}, at::kBFloat16, true);
    REQUIRE(cuda_rows::norm_forward(rstd, y, h, weight, {}, kEps));
    const at::Tensor exact_rstd = composed::reciprocal_rms(wide(h), kEps);
    const at::Tensor exact_y = composed::scale_rows(wide(h), exact_rstd, wide(weight), at::kDouble);
    check_within(y, exact_y,
                 ((kOfRstd + 2) * kRounding + last_rounding(at::kBFloat16)) * exact_y.abs());
    at::Tensor dweight = at::zeros({H}, on_gpu(at::kFloat));
    REQUIRE(cuda_rows::norm_backward_out(dh, dy, h, rstd, weight, {}, dweight));
    const NormGradient exact(wide(dy), wide(h), exact_rstd, wide(weight), {},
                             at::zeros({H}, on_gpu(at::kDouble)), kOfRstd);
    exact.check(dh);
    exact.check_weight(dweight);
  }
}

TEST_CASE("cuda rows: empty tensors are done, and what kernels do not take is composed") {
  if (!has_gpu()) return;
  for (const auto& [T, D] :
       {std::pair<int64_t, int64_t>{0, 64}, std::pair<int64_t, int64_t>{3, 0}}) {
    const at::Tensor h = room({T, D}, at::kFloat, true), weight = room({D}, at::kFloat, true);
    at::Tensor out = at::empty_like(h), gate = at::empty_like(h), up = at::empty_like(h);
    swiglu_out(out, gate, up);
    swiglu_backward_(gate, up, out);
    if (T > 0) continue;
    const auto [rstd, y] = normalize_rows(h, weight, kEps, at::kBFloat16);
    CHECK((y.sizes() == h.sizes() && rstd.numel() == 0));
    at::Tensor dweight = at::ones({D}, on_gpu(at::kFloat));
    CHECK(norm_backward(h, h, rstd, weight, {}, dweight).sizes() == h.sizes());
    CHECK(dweight.eq(1).all().item<bool>());
    at::Tensor lse = at::empty({0}, on_gpu(at::kDouble)), picked = at::empty_like(lse);
    log_sum_exp_rows(h, at::empty({0}, on_gpu(at::kLong)), lse, picked);
  }
  at::manual_seed(8);
  const at::Tensor labels = at::zeros({3}, on_gpu(at::kLong));
  for (const auto& [dtype, D] : {std::pair{at::kDouble, int64_t{64}},
                                 std::pair{at::kBFloat16, 3 * cuda_rows::kMostNumbers}}) {
    const at::Tensor h = random({3, D}, dtype, true), weight = random({D}, dtype, true);
    at::Tensor rstd, y = at::empty_like(h);
    CHECK(!cuda_rows::norm_forward(rstd, y, h, weight, {}, kEps));
    const NormalizedRows rows = normalize_rows(h, weight, kEps, dtype);
    CHECK(at::equal(rows.rstd_T, composed::reciprocal_rms(h, kEps)));
    CHECK(at::equal(rows.y_TD, composed::scale_rows(h, rows.rstd_T, weight, dtype)));
  }
  const cuda::WithoutKernels without;
  const at::Tensor h = random({3, 64}, at::kFloat, true), weight = random({64}, at::kFloat, true);
  at::Tensor rstd, y = at::empty_like(h);
  CHECK(!cuda_rows::norm_forward(rstd, y, h, weight, {}, kEps));
  CHECK(at::equal(reciprocal_rms(h, kEps), composed::reciprocal_rms(h, kEps)));
  at::Tensor out = at::empty_like(h);
  swiglu_out(out, h, h);
  CHECK(at::equal(out, composed::swiglu(h, h)));
}

}  // namespace
}  // namespace longspan
