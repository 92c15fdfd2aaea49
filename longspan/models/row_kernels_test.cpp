// The passes written out for the CPU against the same composed of ATen's operators.
#include "longspan/models/row_kernels.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/models/composed_rows.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

/// Rounding of some tens of operations; a bf16 result also rounds once, to 2^-9 at most.
double tolerance(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-14;
  return dtype == at::kFloat ? 1e-6 : 4e-3;
}

const at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16};

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1) {
  return (at::randn(shape, at::kDouble) * scale).to(dtype);
}

TEST_CASE("row kernels: norm forward and backward") {
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
        // What cancels in dh leaves rounding of the size of its parts.
        CHECK(at::allclose(norm_backward(dy, h, rstd, weight, extra, ours),
                           composed::norm_backward(dy, h, rstd, weight, extra, theirs),
                           4 * tolerance(dtype), 10 * tolerance(dtype)));
        CHECK(relative_error(ours, theirs) < 10 * tolerance(at::kFloat));
      }
    }
  }
}

TEST_CASE("row kernels: the norm in mixed precision") {
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

TEST_CASE("row kernels: rotation") {
  at::manual_seed(3);
  for (const auto dtype : kDtypes) {
    const auto x = random({21, 3, 10}, dtype);
    const auto angles =
        at::rand({21, 5}, at::kDouble).mul(6).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    const RotaryTable table{angles.cos(), angles.sin()};
    for (const bool inverse : {false, true}) {
      CHECK(relative_error(rotate(x, table, inverse), composed::rotate(x, table, inverse)) <
            tolerance(dtype));
    }
    CHECK(relative_error(rotate(rotate(x, table, false), table, true), x) < 2 * tolerance(dtype));
  }
}

TEST_CASE("row kernels: SwiGLU, over the whole range of gates") {
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
  // Each number on its own, not only in the norm: the sigmoid's far left is tiny but not noise.
  auto gate = at::linspace(-80, 80, 4001, at::kFloat).unsqueeze(0);
  auto out = at::empty_like(gate);
  swiglu_out(out, gate, at::ones_like(gate));
  const auto exact = at::silu(gate.to(at::kDouble));
  const auto error = ((out - exact) / exact).nan_to_num().abs().max().item<double>();
  CHECK(error < 1e-6);
}

TEST_CASE("row kernels: cross-entropy of extreme logits") {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const double scale : {1.0, 100.0}) {
      auto logits = random({13, 301}, dtype, scale);
      const auto labels = at::randint(301, {13}, at::kLong);
      auto lse = at::empty({13}, dtype), picked = at::empty({13}, dtype);
      log_sum_exp_rows(logits, labels, lse, picked);
      auto lse2 = at::empty_like(lse), picked2 = at::empty_like(picked);
      composed::log_sum_exp_rows(logits, labels, lse2, picked2);
      CHECK(relative_error(lse, lse2) < tolerance(dtype));
      CHECK(at::equal(picked, picked2));
      const auto row_scale = random({13}, dtype);
      auto logits2 = logits.clone();
      cross_entropy_gradient_(logits, labels, lse2, row_scale);
      composed::cross_entropy_gradient_(logits2, labels, lse2, row_scale);
      // The argument of exp, up to 300 here, is rounded to half a unit in its last place: 1.5e-5.
      CHECK(relative_error(logits, logits2) < tolerance(dtype) * (scale == 1.0 ? 1 : 30));
    }
  }
}

}  // namespace
}  // namespace longspan
