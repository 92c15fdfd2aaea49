// GatedDeltaNet's kernels as a GPU starts them: they access only their arguments, and a part of a
// row has the same launches whatever its length. T: tokens, M: key heads, N: value heads, K, V:
// numbers in a head of keys and of values, J: channels, P: tokens before a row.
#include "longspan/testing/accelerator/recurrent_kernels.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>
#include <vector>

#include "longspan/kernels/causal_conv.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/testing/accelerator/simulated_kernels.h"
#include "longspan/testing/accelerator/streams_for_tests.h"
#include "longspan/testing/tolerance.h"

namespace longspan::testing::accelerator {
namespace {

at::Tensor normal_numbers(at::IntArrayRef sizes) { return at::randn(sizes, at::kFloat); }

/// Results and gradients of a function on a device, and its launches there.
struct DeviceRun {
  Tensors made, gradients;
  int64_t forward = 0, backward = 0;

  template <typename F>
  DeviceRun(const F& compute, const Tensors& inputs, at::Device where) {
    Tensors leaves;
    for (const at::Tensor& x : inputs) {
      leaves.push_back(x.detach().to(where, x.scalar_type(), false, true).requires_grad_(true));
    }
    Machine::get().restart_counters();
    made = compute(leaves);
    forward = Machine::get().counters().launches;
    Tensors of_made;
    for (const at::Tensor& x : made) of_made.push_back(at::ones_like(x));
    Machine::get().restart_counters();
    torch::autograd::backward(made, of_made);
    backward = Machine::get().counters().launches;
    for (const at::Tensor& x : leaves) gradients.push_back(x.grad().cpu());
    for (at::Tensor& x : made) x = x.detach().cpu();
  }
};

template <typename F>
DeviceRun on_the_device(const F& compute, const Tensors& inputs) {
  install();
  const cuda::WithKernels lent(simulated_kernels(0));
  return {compute, inputs, device()};
}

void check_runs(const DeviceRun& there, const DeviceRun& here) {
  for (size_t i = 0; i < here.made.size(); ++i) {
    CHECK(relative_error(there.made[i], here.made[i]) < 1e-5);
  }
  for (size_t i = 0; i < here.gradients.size(); ++i) {
    CAPTURE(i);
    CHECK(relative_error(there.gradients[i], here.gradients[i]) < 1e-4);
  }
}

TEST_CASE(
    "recurrent kernels: the rule on a device, in launches that a row's length does not change") {
  at::manual_seed(61);
  const int64_t M = 2, N = 4, K = 8, V = 4;
  std::vector<std::pair<int64_t, int64_t>> counts;
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{100, 28}, {300, 212}}) {
    const Packing packing = Packing::from_lengths(lengths);
    const int64_t T = packing.num_tokens();
    const Tensors inputs{normal_numbers({T, M, K}), normal_numbers({T, M, K}),
                         normal_numbers({T, N, V}), -at::rand({T, N}),
                         at::rand({T, N}),          normal_numbers({N, K, V})};
    const auto rule = [&](const Tensors& x) {
      const DeltaRuleResult made =
          gated_delta_rule_composed({x[0], x[1], x[2], x[3], x[4]}, packing, x[5]);
      return Tensors{made.out_TNV, made.state_NKV};
    };
    const DeviceRun there = on_the_device(rule, inputs), here(rule, inputs, at::kCPU);
    check_runs(there, here);
    counts.emplace_back(there.forward, there.backward);
  }
  CHECK(counts[0] == counts[1]);
  MESSAGE("launches of a part: ", counts[0].first, " forward, ", counts[0].second, " backward");
  CHECK(counts[0].first <= 11);
  CHECK(counts[0].second <= 19);
}

TEST_CASE("recurrent kernels: the convolution on a device, in launches that do not grow") {
  at::manual_seed(62);
  const int64_t J = 24, P = 3;
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{1, 2}, {50, 1, 149}}) {
    const Packing packing = Packing::from_lengths(lengths);
    const auto convolve = [&](const Tensors& x) {
      return Tensors{causal_conv_silu_composed(x[0], ParameterRows::all_of(x[1]), packing, x[2])};
    };
    const Tensors inputs{normal_numbers({packing.num_tokens(), J}), normal_numbers({J, 1, 4}),
                         normal_numbers({P, J})};
    const DeviceRun there = on_the_device(convolve, inputs), here(convolve, inputs, at::kCPU);
    check_runs(there, here);
    CHECK(there.forward <= 5);
    CHECK(there.backward <= 6);
  }
}

}  // namespace
}  // namespace longspan::testing::accelerator
