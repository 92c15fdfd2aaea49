// Gates and the head's softmax as GPU kernels, against fp64. Tolerance: the error of ATen's fp32
// operators, as in testing/tolerance.h, and one more rounding for a bf16 result. Where terms
// cancel, the error is relative to the terms.
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
using testing::check_close;
using testing::for_shapes;
using testing::fp32;
using testing::norm_of;
using testing::on_gpu;
using testing::random;
using testing::room;
using testing::wide;

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
          at::Tensor other_gate = fp32(gate).clone(), other_up = fp32(up).clone(),
                     other_act = fp32(dact).clone();
          const double size = norm_of(exact_act * exact_up);
          at::Tensor out = room({T, D}, dtype, is_aligned);
          REQUIRE(cuda_rows::gated_out(out, gate, up, kind));
          // Where gates are very negative, both results are negligible beside the others.
          check_close(out, of(other_gate, other_up), of(exact_gate, exact_up),
                      norm_of(exact_gate * exact_up));
          at::Tensor into_up = room({T, D}, dtype, is_aligned).copy_(up);
          REQUIRE(cuda_rows::gated_out(into_up, gate, into_up, kind));
          CHECK(at::equal(into_up, out));
          const double act_size = norm_of(exact_gate * exact_act);
          REQUIRE(cuda_rows::gated_backward_(gate, up, dact, kind));
          backward_(exact_gate, exact_up, exact_act);
          backward_(other_gate, other_up, other_act);
          check_close(gate, other_gate, exact_gate, size);
          check_close(up, other_up, exact_up, act_size);
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
      at::Tensor other_gate = fp32(gate).clone(), other_up = fp32(up).clone(),
                 other_act = fp32(dact).clone();
      const double size = norm_of(exact_act) * (kLimit + 1);
      at::Tensor out = room({T, D}, dtype, is_aligned);
      REQUIRE(cuda_rows::clamped_swiglu_out(out, gate, up, kSlope, kLimit));
      check_close(out, composed::clamped_swiglu(other_gate, other_up, kSlope, kLimit),
                  composed::clamped_swiglu(exact_gate, exact_up, kSlope, kLimit),
                  norm_of(exact_gate) * (kLimit + 1));
      REQUIRE(cuda_rows::clamped_swiglu_backward_(gate, up, dact, kSlope, kLimit));
      composed::clamped_swiglu_backward_(exact_gate, exact_up, exact_act, kSlope, kLimit);
      composed::clamped_swiglu_backward_(other_gate, other_up, other_act, kSlope, kLimit);
      check_close(gate, other_gate, exact_gate, size);
      check_close(up, other_up, exact_up, size);
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
        const at::Tensor exact = wide(row_scale).unsqueeze(1) * (p - onehot);
        at::Tensor other = logits.clone();
        composed::cross_entropy_gradient_(other, labels, lse, row_scale);
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          at::Tensor gradient = room({T, V}, dtype, is_aligned);
          REQUIRE(cuda_rows::cross_entropy_gradient_out(gradient, logits, labels, lse, row_scale));
          // Checks labels, where p - 1 cancels, apart from the much smaller others.
          for (const bool of_labels : {true, false}) {
            const at::Tensor others = onehot.ne(of_labels ? 1.0 : 0.0);
            const at::Tensor mine = exact.masked_fill(others, 0);
            check_close(gradient.masked_fill(others, 0), other.masked_fill(others, 0), mine,
                        of_labels ? norm_of(row_scale) : norm_of(mine));
          }
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
