// The passes over rows as a GPU starts them: each is one launch (the gradient of a weight another),
// accesses only its arguments, and computes the same as the CPU's loops.
#include "longspan/testing/accelerator/simulated_kernels.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/kernels/composed_rows.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/spec/device_sizes.h"
#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {
namespace {

constexpr int64_t kNumRows = 7, kWidth = 40, kHeads = 3, kHeadDim = 16, kPairs = 6,
                  kVocabulary = 33;
constexpr double kEps = 1e-6;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::device(at::kCPU).dtype(at::kFloat)).to(dtype);
}

/// Returns a pass's results for copies of these tensors on the CPU or the device.
using Pass = std::function<Tensors(Tensors)>;

Tensors results(const Pass& pass, const Tensors& given, at::Device where) {
  Tensors copies;
  for (const at::Tensor& x : given) copies.push_back(x.to(where, x.scalar_type(), false, true));
  Tensors made = pass(copies);
  for (at::Tensor& x : made) x = x.cpu();
  return made;
}

/// Returns the number of launches with this prefix, over all types and vector sizes.
int64_t launches_of(std::string_view beginning) {
  int64_t sum = 0;
  for (const auto& [name, count] : Machine::get().counters().launches_of) {
    if (name.starts_with(beginning)) sum += count;
  }
  return sum;
}

void check(const char* kernel, const Pass& pass, const Tensors& given) {
  CAPTURE(kernel);
  const Tensors expected = results(pass, given, at::kCPU);
  Machine::get().restart_counters();
  const Tensors made = results(pass, given, device());
  CHECK(launches_of(kernel) == 1);
  REQUIRE(made.size() == expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    CAPTURE(i);
    CHECK((made[i].scalar_type() == expected[i].scalar_type()));
    CHECK(at::equal(made[i], expected[i]));
  }
}

RotaryTable table_of(const Tensors& x, RotaryPairs pairs = RotaryPairs::kHalves) {
  return {x[1], x[2], pairs};
}

TEST_CASE("row kernels: each pass is the CPU's, in one launch") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  at::manual_seed(1);
  for (const auto& [of_h, of_y] : {std::pair(at::kFloat, at::kFloat),
                                   {at::kFloat, at::kBFloat16},
                                   {at::kBFloat16, at::kBFloat16}}) {
    const at::Tensor h = random({kNumRows, kWidth}, of_h), weight = random({kWidth}),
                     dy = random({kNumRows, kWidth}, of_y),
                     residual = random({kNumRows, kWidth}, of_h);
    check("drop_out_", [](Tensors x) -> Tensors { return {Dropout{0.3, 7, x[1]}.apply(x[0])}; },
          {dy, at::arange(kNumRows) * 5});
    check("norm_both_",
          [&](Tensors x) -> Tensors {
            const NormalizedRows rows = normalize_rows(x[0], x[1], kEps, of_y);
            return {rows.rstd_T, rows.y_TD};
          },
          {h, weight});
    check("norm_rms_", [&](Tensors x) -> Tensors { return {reciprocal_rms(x[0], kEps)}; }, {h});
    const at::Tensor rstd = composed::reciprocal_rms(h, kEps);
    check("norm_scale_", [&](Tensors x) -> Tensors { return {scale_rows(x[0], x[1], x[2], of_y)}; },
          {h, rstd, weight});
    check("norm_backward_",
          [&](Tensors x) -> Tensors { return {norm_backward(x[0], x[1], x[2], x[3], x[4], {})}; },
          {dy, h, rstd, weight, residual});
    check("norm_backward_sums_",
          [&](Tensors x) -> Tensors {
            const at::Tensor dh = norm_backward(x[0], x[1], x[2], x[3], {}, x[4]);
            return {dh, x[4]};
          },
          {dy, h, rstd, weight, at::zeros({kWidth})});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensors heads{random({kNumRows, kHeads, kHeadDim}, dtype), random({kNumRows, kPairs}),
                        random({kNumRows, kPairs})};
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
      check(
          pairs == RotaryPairs::kHalves ? "rotate_halves_" : "rotate_neighbours_",
          [&](Tensors x) -> Tensors { return {rotate(x[0], table_of(x, pairs), false)}; }, heads);
    }
    check(
        "rotate_",
        [](Tensors x) -> Tensors {
          rotate_(x[0], table_of(x), /*inverse=*/true);
          return {x[0]};
        },
        heads);
    const Tensors gates{random({kNumRows, kWidth}, dtype), random({kNumRows, kWidth}, dtype),
                        random({kNumRows, kWidth}, dtype)};
    check(
        "swiglu_out_",
        [](Tensors x) -> Tensors {
          swiglu_out(x[2], x[0], x[1]);
          return {x[2]};
        },
        gates);
    check(
        "geglu_out_",
        [](Tensors x) -> Tensors {
          geglu_out(x[2], x[0], x[1]);
          return {x[2]};
        },
        gates);
    check(
        "clamped_out_",
        [](Tensors x) -> Tensors {
          clamped_swiglu_out(x[2], x[0], x[1], 1.702, 0.5);
          return {x[2]};
        },
        gates);
    check(
        "clamped_backward_",
        [](Tensors x) -> Tensors {
          clamped_swiglu_backward_(x[0], x[1], x[2], 1.702, 0.5);
          return x;
        },
        gates);
    check(
        "swiglu_backward_",
        [](Tensors x) -> Tensors {
          swiglu_backward_(x[0], x[1], x[2]);
          return x;
        },
        gates);
    check(
        "geglu_backward_",
        [](Tensors x) -> Tensors {
          geglu_backward_(x[0], x[1], x[2]);
          return x;
        },
        gates);
  }
  const at::Tensor logits = random({kNumRows, kVocabulary});
  const at::Tensor labels = at::arange(kNumRows, at::kLong);
  const at::Tensor numbers = at::zeros({kNumRows}, at::kDouble);
  check("log_sum_exp_",
        [](Tensors x) -> Tensors {
          log_sum_exp_rows(x[0], x[1], x[2], x[3]);
          return {x[2], x[3]};
        },
        {logits, labels, numbers, numbers});
}

/// The norm and rotation of whole heads, and of the first elements of longer heads.
TEST_CASE("row kernels: heads are normed and rotated as on the CPU, in one launch") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t gate : {0, 8}) {
      const Tensors heads{random({kNumRows, kHeads, kHeadDim + gate}, dtype),
                          random({kNumRows, kPairs}), random({kNumRows, kPairs}),
                          random({kHeadDim})};
      check(
          "norm_rotate_",
          [](Tensors x) -> Tensors {
            at::Tensor y, rstd;
            norm_rotate_out(y, &rstd, x[0].narrow(2, 0, kHeadDim), x[3], table_of(x), kEps);
            return {y, rstd};
          },
          heads);
      check(
          "norm_rotate_",
          [](Tensors x) -> Tensors {
            at::Tensor in_place = x[0].narrow(2, 0, kHeadDim);
            norm_rotate_out(in_place, nullptr, in_place, x[3], table_of(x), kEps);
            return {x[0]};
          },
          heads);
      Tensors more = heads;
      more.push_back(random({kNumRows, kHeads, kHeadDim + gate}, dtype));
      more.push_back(random({kNumRows * kHeads}).abs());
      more.push_back(at::zeros({kHeadDim}));
      for (const bool rstd_is_given : {false, true}) {
        for (const bool sums : {false, true}) {
          check(
              sums ? "norm_rotate_backward_sums_" : "norm_rotate_backward_",
              [&](Tensors x) -> Tensors {
                const at::Tensor dx =
                    norm_rotate_backward(x[4].narrow(2, 0, kHeadDim), x[0].narrow(2, 0, kHeadDim),
                                         rstd_is_given ? x[5] : at::Tensor(), x[3], table_of(x),
                                         kEps, sums ? x[6] : at::Tensor());
                return {dx, x[6]};
              },
              more);
        }
      }
    }
  }
}

TEST_CASE("row kernels: what the gradients of a weight are added to is kept") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  const at::Tensor h = random({kNumRows, kWidth}), dy = random({kNumRows, kWidth}),
                   weight = random({kWidth}), rstd = composed::reciprocal_rms(h, kEps);
  const at::Tensor before = at::ones({kWidth}, on_device());
  norm_backward(dy.to(device()), h.to(device()), rstd.to(device()), weight.to(device()), {},
                before);
  const at::Tensor expected = 1 + (dy * h * rstd.unsqueeze(1)).sum(0);
  CHECK(at::allclose(before.cpu(), expected, 1e-5, 1e-5));
}

TEST_CASE("row kernels: a gate that has none is composed in parts, of so many bytes a number") {
  install();
  const cuda::WithoutKernels without;
  constexpr int64_t kWide = kComposedNumbers / 2 + 1;  // one row at a time
  static_assert(composed_rows(kWide) == 1);
  const at::Tensor gate = random({2, kWide}, at::kBFloat16), up = random({2, kWide}, at::kBFloat16),
                   dact = random({2, kWide}, at::kBFloat16);
  at::Tensor on_gate = gate.to(device()), on_up = up.to(device()), on_dact = dact.to(device()),
             out = at::empty_like(on_gate);
  const auto most = [&](const std::function<void()>& run) {
    Machine::get().restart_peak(0);
    const int64_t before = Machine::get().bytes(0).now;
    run();
    return Machine::get().bytes(0).most - before;
  };
  CHECK(most([&] { clamped_swiglu_out(out, on_gate, on_up, 1.702, 1.0); }) <=
        kComposedBytes * kWide);
  CHECK(most([&] { clamped_swiglu_backward_(on_gate, on_up, on_dact, 1.702, 1.0); }) ==
        kComposedBytes * kWide);
  for (const int64_t row : {0, 1}) {
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, row, 1).clone(); };
    at::Tensor gate_1I = of(gate), up_1I = of(up), dact_1I = of(dact);
    CHECK(of(out.cpu()).equal(composed::clamped_swiglu(gate_1I, up_1I, 1.702, 1.0)));
    composed::clamped_swiglu_backward_(gate_1I, up_1I, dact_1I, 1.702, 1.0);
    CHECK(of(on_gate.cpu()).equal(gate_1I));
    CHECK(of(on_up.cpu()).equal(up_1I));
    CHECK(of(on_dact.cpu()).equal(dact_1I));
  }
}

TEST_CASE("row kernels: what they read and write takes part in races") {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  const auto fault_of = [](const std::function<void()>& run) -> std::optional<Fault> {
    try {
      run();
    } catch (const FaultError& error) {
      return error.fault;
    }
    return std::nullopt;
  };
  const at::Tensor gate = at::ones({kNumRows, kWidth}, on_device()), up = at::ones_like(gate);
  at::Tensor out = at::empty_like(gate);
  const c10::Stream side = another_stream();
  CHECK((fault_of([&] { on(side, [&] { swiglu_out(out, gate, up); }); }) == Fault::kRace));
  wait(side, main_stream());
  CHECK((fault_of([&] { on(side, [&] { swiglu_out(out, gate, up); }); }) == std::nullopt));
  CHECK((fault_of([&] { gate.fill_(2); }) == Fault::kRace));  // the kernel still reads it
  CHECK((fault_of([&] { out.add_(1); }) == Fault::kRace));    // the kernel still writes it
  wait(main_stream(), side);
  CHECK((fault_of([&] { out.add_(1); }) == std::nullopt));
  const at::Tensor unwritten = at::empty_like(gate);
  CHECK((fault_of([&] { swiglu_out(out, unwritten, up); }) == Fault::kUninitialized));
}

}  // namespace
}  // namespace longspan::testing::accelerator
