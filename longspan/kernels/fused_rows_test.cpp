// Compares the CPU's loops with ATen's operators.
#include "longspan/kernels/fused_rows.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "longspan/kernels/composed_rows.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

/// Rounding of some tens of operations. A bf16 result rounds once more, to 2^-9 at most.
double tolerance(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-14;
  return dtype == at::kFloat ? 1e-6 : 4e-3;
}

const at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16};

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1) {
  return (at::randn(shape, at::kDouble) * scale).to(dtype);
}

TEST_CASE("fused rows: norm forward and backward") {
  at::manual_seed(1);
  for (const auto dtype : kDtypes) {
    for (const int64_t D : {1, 7, 64, 100}) {
      const auto h = random({37, D}, dtype, 3), dy = random({37, D}, dtype);
      const auto residual = random({37, D}, dtype), weight = random({D}, dtype);
      const auto rstd = reciprocal_rms(h, 1e-6);
      CHECK(relative_error(rstd, composed::reciprocal_rms(h, 1e-6)) < 1e-6);
      CHECK(relative_error(scale_rows(h, rstd, weight, dtype),
                           composed::scale_rows(h, rstd, weight, dtype)) < tolerance(dtype));
      for (const auto& extra : {at::Tensor(), residual}) {
        const auto ours = at::zeros({D}, rstd.options()), theirs = at::zeros_like(ours);
        // Where terms of dh cancel, the error is relative to the terms.
        CHECK(at::allclose(norm_backward(dy, h, rstd, weight, extra, ours),
                           composed::norm_backward(dy, h, rstd, weight, extra, theirs),
                           4 * tolerance(dtype), 10 * tolerance(dtype)));
        CHECK(relative_error(ours, theirs) < 10 * tolerance(at::kFloat));
      }
    }
  }
}

TEST_CASE("fused rows: the norm in mixed precision") {
  at::manual_seed(2);
  const auto h = random({37, 48}, at::kFloat), weight = random({48}, at::kFloat);
  const auto rstd = reciprocal_rms(h, 1e-6);
  const auto y = scale_rows(h, rstd, weight, at::kBFloat16);
  CHECK((y.scalar_type() == at::kBFloat16));
  CHECK(at::equal(y, scale_rows(h, rstd, weight, at::kFloat).to(at::kBFloat16)));
  const auto dy = random({37, 48}, at::kBFloat16);
  CHECK(relative_error(norm_backward(dy, h, rstd, weight, {}, {}),
                       composed::norm_backward(dy, h, rstd, weight, {}, {})) < 1e-6);
}

TEST_CASE("fused rows: combinations give the bits of their parts") {
  at::manual_seed(7);
  for (const auto& [dtype, compute] :
       {std::pair{at::kFloat, at::kFloat}, std::pair{at::kFloat, at::kBFloat16},
        std::pair{at::kBFloat16, at::kBFloat16}, std::pair{at::kDouble, at::kDouble}}) {
    const auto h = random({37, 48}, dtype, 3), weight = random({48}, dtype);
    const auto dy = random({37, 48}, compute), residual = random({37, 48}, dtype);
    const auto [rstd, y] = normalize_rows(h, weight, 1e-6, compute);
    CHECK(at::equal(rstd, reciprocal_rms(h, 1e-6)));
    CHECK(at::equal(y, scale_rows(h, rstd, weight, compute)));
    at::Tensor sum = residual.clone();
    add_normalized_out(sum, sum, h, weight, 1e-6);
    CHECK(at::equal(sum, residual + scale_rows(h, rstd, weight, dtype)));
    // Into its own memory, the residual's, and strided memory.
    const auto expected = norm_backward(dy, h, rstd, weight, residual, {});
    at::Tensor dh = at::full_like(h, NAN), columns = at::full({48, 37}, NAN, h.options()).t();
    norm_backward_out(dh, dy, h, rstd, weight, residual, {});
    CHECK(at::equal(dh, expected));
    dh.copy_(residual);
    norm_backward_out(dh, dy, h, rstd, weight, dh, {});
    CHECK(at::equal(dh, expected));
    norm_backward_out(columns, dy, h, rstd, weight, residual, {});
    CHECK(at::equal(columns, expected));
  }
  const auto logits = random({5, 31}, at::kFloat), scale = random({5}, at::kFloat);
  const auto labels = at::randint(31, {5}, at::kLong);
  auto lse = at::empty({5}, at::kDouble), picked = at::empty({5}, at::kDouble);
  log_sum_exp_rows(logits, labels, lse, picked);
  auto in_place = logits.clone(), mine = logits.clone();
  cross_entropy_gradient_(in_place, labels, lse, scale);
  CHECK(at::equal(cross_entropy_gradient(mine, labels, lse, scale, at::kBFloat16),
                  in_place.to(at::kBFloat16)));
}

TEST_CASE("fused rows: rotation") {
  at::manual_seed(3);
  for (const auto dtype : kDtypes) {
    const auto x = random({21, 3, 13}, dtype);  // 10 of 13 numbers are rotated
    const auto angles =
        at::rand({21, 5}, at::kDouble).mul(6).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    for (const auto pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
      const RotaryTable table{angles.cos(), angles.sin(), pairs};
      for (const bool inverse : {false, true}) {
        CHECK(relative_error(rotate(x, table, inverse), composed::rotate(x, table, inverse)) <
              tolerance(dtype));
      }
      CHECK(relative_error(rotate(rotate(x, table, false), table, true), x) < 2 * tolerance(dtype));
    }
    // Neighbours are the halves of a permuted head.
    const auto turned = x.narrow(2, 0, 10);
    const auto as_halves = turned.unflatten(2, {5, 2}).transpose(2, 3).flatten(2).contiguous();
    const RotaryTable halves{angles.cos(), angles.sin(), RotaryPairs::kHalves},
        neighbours{angles.cos(), angles.sin(), RotaryPairs::kNeighbours};
    CHECK(at::allclose(
        rotate(turned, neighbours, false),
        rotate(as_halves, halves, false).unflatten(2, {2, 5}).transpose(2, 3).flatten(2),
        tolerance(dtype), tolerance(dtype)));
  }
}

TEST_CASE("fused rows: GeGLU, over the whole range of gates") {
  at::manual_seed(5);
  for (const auto dtype : kDtypes) {
    for (const double scale : {1.0, 5.0, 50.0}) {
      auto gate = random({19, 53}, dtype, scale), up = random({19, 53}, dtype),
           dact = random({19, 53}, dtype);
      auto out = at::empty_like(gate);
      geglu_out(out, gate, up);
      CHECK(relative_error(out, composed::geglu(gate, up)) < tolerance(dtype));
      auto gate2 = gate.clone(), up2 = up.clone(), dact2 = dact.clone();
      geglu_backward_(gate, up, dact);
      composed::geglu_backward_(gate2, up2, dact2);
      CHECK(relative_error(gate, gate2) < 4 * tolerance(dtype));
      CHECK(relative_error(up, up2) < tolerance(dtype));
      CHECK(relative_error(dact, dact2) < tolerance(dtype));
    }
  }
}

TEST_CASE("fused rows: clamped SwiGLU, over the whole range of gates") {
  at::manual_seed(7);
  constexpr double kSlope = 1.702, kLimit = 2.0;
  for (const auto dtype : kDtypes) {
    for (const double scale : {1.0, 5.0, 50.0}) {
      auto gate = random({19, 53}, dtype, scale), up = random({19, 53}, dtype, 2),
           dact = random({19, 53}, dtype);
      auto out = at::empty_like(gate);
      clamped_swiglu_out(out, gate, up, kSlope, kLimit);
      CHECK(relative_error(out, composed::clamped_swiglu(gate, up, kSlope, kLimit)) <
            tolerance(dtype));
      auto gate2 = gate.clone(), up2 = up.clone(), dact2 = dact.clone();
      clamped_swiglu_backward_(gate, up, dact, kSlope, kLimit);
      composed::clamped_swiglu_backward_(gate2, up2, dact2, kSlope, kLimit);
      CHECK(relative_error(gate, gate2) < 4 * tolerance(dtype));
      CHECK(relative_error(up, up2) < tolerance(dtype));
      CHECK(relative_error(dact, dact2) < tolerance(dtype));
    }
  }
}

TEST_CASE("fused rows: SwiGLU, over the whole range of gates") {
  at::manual_seed(4);
  for (const auto dtype : kDtypes) {
    for (const double scale : {1.0, 20.0, 200.0}) {
      auto gate = random({19, 53}, dtype, scale), up = random({19, 53}, dtype),
           dact = random({19, 53}, dtype);
      auto out = at::empty_like(gate);
      swiglu_out(out, gate, up);
      CHECK(relative_error(out, composed::swiglu(gate, up)) < tolerance(dtype));
      auto gate2 = gate.clone(), up2 = up.clone(), dact2 = dact.clone();
      swiglu_backward_(gate, up, dact);
      composed::swiglu_backward_(gate2, up2, dact2);
      CHECK(relative_error(gate, gate2) < 4 * tolerance(dtype));
      CHECK(relative_error(up, up2) < tolerance(dtype));
      CHECK(relative_error(dact, dact2) < tolerance(dtype));
    }
  }
  // Checks each number and not only the norm: the sigmoid's far left is tiny but no noise.
  auto gate = at::linspace(-80, 80, 4001, at::kFloat).unsqueeze(0);
  auto out = at::empty_like(gate);
  swiglu_out(out, gate, at::ones_like(gate));
  const auto exact = at::silu(gate.to(at::kDouble));
  const auto error = ((out - exact) / exact).nan_to_num().abs().max().item<double>();
  CHECK(error < 1e-6);
}

TEST_CASE("fused rows: cross-entropy of extreme logits") {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const double scale : {1.0, 100.0}) {
      auto logits = random({13, 301}, dtype, scale);
      const auto labels = at::randint(301, {13}, at::kLong);
      auto lse = at::empty({13}, at::kDouble), picked = at::empty({13}, at::kDouble);
      log_sum_exp_rows(logits, labels, lse, picked);
      auto lse2 = at::empty_like(lse), picked2 = at::empty_like(picked);
      composed::log_sum_exp_rows(logits, labels, lse2, picked2);
      CHECK(relative_error(lse, lse2) < tolerance(dtype));
      CHECK(at::equal(picked, picked2));
      const auto row_scale = random({13}, dtype);
      auto logits2 = logits.clone();
      cross_entropy_gradient_(logits, labels, lse2, row_scale);
      composed::cross_entropy_gradient_(logits2, labels, lse2, row_scale);
      // The argument of exp, up to 300 here, is rounded to half an ulp: 1.5e-5.
      CHECK(relative_error(logits, logits2) < tolerance(dtype) * (scale == 1.0 ? 1 : 30));
    }
  }
}

TEST_CASE("fused rows: cross-entropy over a whole vocabulary has the digits of its logits") {
  at::manual_seed(6);
  for (const int64_t vocabulary : {49152, 151936}) {
    // Like a trained model's: each row has a few likely tokens, and a long tail 16 nats below them,
    // whose probabilities are smaller than an fp32 ulp.
    at::Tensor logits = at::randn({3, vocabulary}).mul_(2).add_(4);
    const auto few = at::arange(0, 8, at::kLong) * 5003 + 11;
    logits.index_copy_(1, few, at::linspace(20, 14, 8).expand({3, 8}));
    const auto labels = at::tensor({few[0].item<int64_t>(), few[7].item<int64_t>(), int64_t{0}});
    const auto exact = logits.to(at::kDouble).log_softmax(-1);
    const auto exact_loss = -exact.gather(1, labels.unsqueeze(1)).squeeze(1);
    const auto scale = at::tensor({1.0F, 0.5F, -2.0F});
    auto exact_gradient = exact.exp();
    exact_gradient.scatter_add_(1, labels.unsqueeze(1), at::full({3, 1}, -1.0, at::kDouble));
    exact_gradient.mul_(scale.unsqueeze(1));
    const auto check = [&](const auto& log_sum_exp, const auto& gradient) {
      auto lse = at::empty({3}, at::kDouble), picked = at::empty({3}, at::kDouble);
      log_sum_exp(logits, labels, lse, picked);
      CHECK((lse - picked - exact_loss).abs().max().item<double>() < 1e-7);
      auto mine = logits.clone();
      gradient(mine, labels, lse, scale);
      CHECK(relative_error(mine, exact_gradient) < 3e-7);  // rounding of exp and of a product
    };
    check(log_sum_exp_rows, cross_entropy_gradient_);
    check(composed::log_sum_exp_rows, composed::cross_entropy_gradient_);
  }
}

TEST_CASE("fused rows: logits that are not finite give no healthy loss") {
  const uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF};
  const auto labels = at::zeros({1}, at::kLong);
  const auto loss_of = [&](const at::Tensor& logits) {
    auto lse = at::empty({1}, at::kDouble), picked = at::empty({1}, at::kDouble);
    log_sum_exp_rows(logits, labels, lse, picked);
    return (lse - picked).item<double>();
  };
  for (const uint32_t bits : nans) {
    for (const int64_t place : {0, 1, 300}) {
      auto logits = random({1, 301}, at::kFloat);
      logits.mutable_data_ptr<float>()[place] = std::bit_cast<float>(bits);
      CHECK(std::isnan(loss_of(logits)));
    }
  }
  auto logits = random({1, 301}, at::kFloat);
  logits[0][7].fill_(INFINITY);
  CHECK(std::isnan(loss_of(logits)));
  // -inf is an impossible token: it adds nothing to the sum, and gives an infinite loss as label.
  logits[0][7].fill_(-INFINITY);
  const double without = loss_of(logits);
  const auto kept = at::cat({logits.narrow(1, 0, 7), logits.narrow(1, 8, 293)}, 1);
  CHECK(without == doctest::Approx(loss_of(kept)).epsilon(1e-7));
  logits[0][0].fill_(-INFINITY);
  CHECK(loss_of(logits) == INFINITY);
}

}  // namespace
}  // namespace longspan
