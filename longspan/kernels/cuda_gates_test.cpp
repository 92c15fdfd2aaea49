// Gates and the head's softmax as GPU kernels, against fp64, number by number, as in
// cuda_rows_test.cpp. exp is right to 2 ulp, which are 4 roundings.
#include "longspan/kernels/cuda_rows.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "longspan/kernels/composed_rows.h"
#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using cuda_rows::Gate;
using testing::AnyKernels;
using testing::check_within;
using testing::for_shapes;
using testing::kRounding;
using testing::last_rounding;
using testing::on_gpu;
using testing::random;
using testing::room;
using testing::wide;

/// Bounds of g sigmoid(z) u and of its gradients, in fp64. `dz`: the slope of z in g; `of_z`: the
/// roundings of z. A sigmoid has up to twelve, and those of z times |z|; on the right of 0
/// its slope falls faster than z grows.
struct GateBounds {
  at::Tensor out, gate, up;

  GateBounds(const at::Tensor& g, const at::Tensor& u, const at::Tensor& d, const at::Tensor& z,
             const at::Tensor& dz, double of_z) {
    const at::Tensor roundings = of_z * at::maximum(-z, at::ones_like(z)) + 12, s = at::sigmoid(z),
                     slopes = 1 + (g * dz).abs();
    constexpr double kOfTanh = 0x1p-50;  // of 1 + tanh in the reference
    out = (kRounding * (roundings + 4) * s + kOfTanh) * (g * u).abs();
    gate = (kRounding * (2 * roundings + 16) * s + kOfTanh) * (d * u).abs() * slopes;
    up = (kRounding * (roundings + 4) * s + kOfTanh) * (d * g).abs();
  }
};

TEST_CASE("cuda rows: gates and their gradients, over their whole range") {
  const AnyKernels kernels;
  at::manual_seed(5);
  for (const Gate kind : {Gate::kSwiglu, Gate::kGeglu}) {
    const bool is_swiglu = kind == Gate::kSwiglu;
    const auto of = is_swiglu ? composed::swiglu : composed::geglu;
    const auto backward_ = is_swiglu ? composed::swiglu_backward_ : composed::geglu_backward_;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const double scale : {1.0, 20.0}) {
        for_shapes([&](int64_t T, int64_t D, bool is_aligned) {
          at::Tensor gate = random({T, D}, dtype, is_aligned, scale),
                     up = random({T, D}, dtype, is_aligned),
                     dact = random({T, D}, dtype, is_aligned);
          at::Tensor exact_gate = wide(gate), exact_up = wide(up), exact_act = wide(dact);
          // In the tanh form of gelu, z has the roundings of seven operations.
          constexpr double kSlope = 1.5957691216057307, kCubic = 0.044715;
          const at::Tensor g = exact_gate.clone(), cubic = kCubic * g.square();
          const GateBounds bounds(g, exact_up, exact_act, is_swiglu ? g : kSlope * g * (1 + cubic),
                                  is_swiglu ? at::ones_like(g) : kSlope * (1 + 3 * cubic),
                                  is_swiglu ? 0 : 7);
          const double last = last_rounding(dtype);
          at::Tensor out = room({T, D}, dtype, is_aligned);
          REQUIRE(cuda_rows::gated_out(out, gate, up, kind));
          const at::Tensor exact_out = of(exact_gate, exact_up);
          check_within(out, exact_out, bounds.out + last * exact_out.abs());
          at::Tensor into_up = room({T, D}, dtype, is_aligned).copy_(up);
          REQUIRE(cuda_rows::gated_out(into_up, gate, into_up, kind));
          CHECK(at::equal(into_up, out));
          REQUIRE(cuda_rows::gated_backward_(gate, up, dact, kind));
          backward_(exact_gate, exact_up, exact_act);
          check_within(gate, exact_gate, bounds.gate + last * exact_gate.abs());
          check_within(up, exact_up, bounds.up + last * exact_up.abs());
          CHECK(at::equal(dact, out));
        });
      }
    }
  }
  // Checks each number: the sigmoid's far left is tiny but no noise. There it is denormal, a
  // multiple of 2^-149. exp is right to two ulp, and the product with the gate rounds once more.
  const at::Tensor gate = at::linspace(-100, 80, 4001, on_gpu(at::kFloat)).unsqueeze(0);
  at::Tensor out = room({1, 4001}, at::kFloat, true);
  REQUIRE(cuda_rows::gated_out(out, gate, at::ones_like(gate), Gate::kSwiglu));
  const at::Tensor exact = wide(gate) / (1 + at::exp(-wide(gate)));
  const at::Tensor allowed = exact.abs() * 1e-6 + (2 * wide(gate).abs() + 1) * 0x1p-149;
  CHECK((wide(out) - exact).abs().le(allowed).all().item<bool>());
}

TEST_CASE("cuda rows: the clamped gate and its gradients, on both sides of its limits") {
  const AnyKernels kernels;
  at::manual_seed(8);
  constexpr double kSlope = 1.702, kLimit = 1.5;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for_shapes([&](int64_t T, int64_t D, bool is_aligned) {
      at::Tensor gate = random({T, D}, dtype, is_aligned, 2),
                 up = random({T, D}, dtype, is_aligned, 2),
                 dact = random({T, D}, dtype, is_aligned);
      gate.view({-1})[0] = up.view({-1})[0] = kLimit;  // on the limits
      at::Tensor exact_gate = wide(gate), exact_up = wide(up), exact_act = wide(dact);
      const at::Tensor held = exact_gate.clamp_max(kLimit);
      const GateBounds bounds(held, exact_up.clamp(-kLimit, kLimit) + 1, exact_act, kSlope * held,
                              at::full_like(held, kSlope), /*of_z=*/2);
      const double last = last_rounding(dtype);
      at::Tensor out = room({T, D}, dtype, is_aligned);
      REQUIRE(cuda_rows::clamped_swiglu_out(out, gate, up, kSlope, kLimit));
      const at::Tensor exact_out = composed::clamped_swiglu(exact_gate, exact_up, kSlope, kLimit);
      check_within(out, exact_out, bounds.out + last * exact_out.abs());
      REQUIRE(cuda_rows::clamped_swiglu_backward_(gate, up, dact, kSlope, kLimit));
      composed::clamped_swiglu_backward_(exact_gate, exact_up, exact_act, kSlope, kLimit);
      check_within(gate, exact_gate, bounds.gate + last * exact_gate.abs());
      check_within(up, exact_up, bounds.up + last * exact_up.abs());
      CHECK(at::equal(dact, out));
      // Clamped numbers have gradient 0.
      CHECK(at::equal(gate.eq(0), exact_gate.eq(0)));
      CHECK(at::equal(up.eq(0), exact_up.eq(0)));
    });
  }
  at::Tensor none = at::full({1, 8}, NAN, on_gpu(at::kFloat)), one = at::ones_like(none),
             out = at::empty_like(none);
  for (const auto& [gate, up] : {std::pair(none, one), {one, none}}) {
    REQUIRE(cuda_rows::clamped_swiglu_out(out, gate, up, kSlope, kLimit));
    CHECK(out.isnan().all().item<bool>());
    at::Tensor dgate = gate.clone(), dup = up.clone(), dact = one.clone();
    REQUIRE(cuda_rows::clamped_swiglu_backward_(dgate, dup, dact, kSlope, kLimit));
    for (const at::Tensor& x : {dgate, dact}) CHECK(x.isnan().all().item<bool>());
  }
}

TEST_CASE("cuda rows: log-sum-exps of any vocabulary, and the gradient") {
  const AnyKernels kernels;
  at::manual_seed(6);
  for (const int64_t V : {1, 7, 301, 1000, 50257, 151936, 262144}) {
    for (const bool is_aligned : {true, false}) {
      for (const double scale : {1.0, 20.0}) {
        if (V > 200'000 && !cuda_available()) continue;
        CAPTURE(V);
        CAPTURE(is_aligned);
        CAPTURE(scale);
        const int64_t T = cuda_available() ? 37 : 2;
        const at::Tensor logits = random({T, V}, at::kFloat, is_aligned, scale);
        const at::Tensor labels = at::randint(V, {T}, on_gpu(at::kLong));
        at::Tensor lse = at::full({T}, NAN, on_gpu(at::kDouble)), picked = lse.clone();
        REQUIRE(cuda_rows::log_sum_exp_rows(logits, labels, lse, picked));
        const at::Tensor exact_lse = at::logsumexp(wide(logits), 1);
        // exp is right to 2 ulp. Its argument, x - max, is also rounded, which counts by its part
        // of the sum.
        const at::Tensor p = at::softmax(wide(logits), 1);
        const at::Tensor below = wide(logits).amax(1, /*keepdim=*/true) - wide(logits);
        const at::Tensor allowed = 0x1p-21 + 0x1p-24 * (p * below).sum(1);
        CHECK((lse - exact_lse).abs().le(allowed).all().item<bool>());
        CHECK(at::equal(picked, wide(logits).gather(1, labels.unsqueeze(1)).squeeze(1)));

        const at::Tensor row_scale = at::randn({T}, on_gpu(at::kFloat));
        const at::Tensor onehot = at::zeros_like(p).scatter_(1, labels.unsqueeze(1), 1.0);
        // x - lse is rounded, exp and its factor have six roundings, and p - 1 one more.
        const at::Tensor of_lse = wide(logits) - lse.unsqueeze(1), given = at::exp(of_lse),
                         scales = wide(row_scale).unsqueeze(1), exact = scales * (given - onehot);
        const at::Tensor bound =
            kRounding * (scales.abs() * given * (of_lse.abs() + 6) + exact.abs());
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          at::Tensor gradient = room({T, V}, dtype, is_aligned);
          REQUIRE(cuda_rows::cross_entropy_gradient_out(gradient, logits, labels, lse, row_scale));
          check_within(gradient, exact, bound + last_rounding(dtype) * exact.abs());
          if (dtype == at::kFloat) {
            at::Tensor in_place = room({T, V}, dtype, is_aligned).copy_(logits);
            REQUIRE(
                cuda_rows::cross_entropy_gradient_out(in_place, in_place, labels, lse, row_scale));
            CHECK(at::equal(in_place, gradient));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda rows: logits that are not finite give no healthy loss") {
  const AnyKernels kernels;
  const at::Tensor labels = at::zeros({1}, on_gpu(at::kLong));
  const auto loss_of = [&](const at::Tensor& logits) {
    at::Tensor lse = at::empty({1}, on_gpu(at::kDouble)), picked = at::empty_like(lse);
    REQUIRE(cuda_rows::log_sum_exp_rows(logits, labels, lse, picked));
    return (lse - picked).item<double>();
  };
  at::manual_seed(7);
  const at::Tensor healthy = at::randn({1, 301}, on_gpu(at::kFloat));
  for (const int64_t place : {0, 1, 300}) {
    for (const double value : {static_cast<double>(NAN), -static_cast<double>(NAN),
                               std::numeric_limits<double>::infinity()}) {
      at::Tensor logits = healthy.clone();
      logits.select(1, place).fill_(value);
      CHECK(std::isnan(loss_of(logits)));
    }
  }
  CHECK(std::isnan(loss_of(at::full_like(healthy, -INFINITY))));
  // -inf is an impossible token: it adds nothing to the sum, and gives an infinite loss as label.
  at::Tensor logits = healthy.clone();
  logits.select(1, 7).fill_(-INFINITY);
  const at::Tensor kept = at::cat({logits.narrow(1, 0, 7), logits.narrow(1, 8, 293)}, 1);
  CHECK(loss_of(logits) == doctest::Approx(loss_of(kept)).epsilon(1e-7));
  logits.select(1, 0).fill_(-INFINITY);
  CHECK(loss_of(logits) == std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace longspan
