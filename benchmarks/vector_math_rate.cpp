// Compares the row loops for every set of vector instructions of the CPU in one run, and the global
// gradient norm to torch's. Usage: bench_vector_math [elements of a row]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "longspan/cpu/vector_math.h"
#include "longspan/optim/gradient_norm.h"

namespace {

using longspan::CpuCapability;
using longspan::vector_math::Kernels;

double microseconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// The contenders take turns, and the best time counts, since other load only adds time.
std::vector<double> best_in_turns(const std::vector<std::function<void()>>& contenders,
                                  int rounds) {
  std::vector<double> best(contenders.size(), 1e30);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      best[i] = std::min(best[i], microseconds_of(contenders[i]));
    }
  }
  return best;
}

void compare_loops(int64_t n) {
  const at::Tensor x = at::randn({n}) * 3, y = at::randn({n}), out = at::empty({n});
  const float *a = x.const_data_ptr<float>(), *b = y.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const at::Tensor scratch = at::empty({2, n});
  float *second = scratch[0].mutable_data_ptr<float>(),
        *third = scratch[1].mutable_data_ptr<float>();
  const float largest = x.max().item<float>();
  volatile double result = 0;

  using Work = std::function<void(const Kernels&)>;
  const std::vector<std::pair<std::string, Work>> loops = {
      {"max", [&](const Kernels& k) { result = k.max(a, n); }},
      {"sum_exp", [&](const Kernels& k) { result = k.sum_exp(a, largest, n); }},
      // The inputs stay the same: 0 times any value.
      {"scaled_exp", [&](const Kernels& k) { k.scaled_exp(to, 100.0F, 0.0F, n); }},
      {"swiglu", [&](const Kernels& k) { k.swiglu(to, a, b, n); }},
      {"swiglu_backward",
       [&](const Kernels& k) {
         std::copy(a, a + n, to);
         std::copy(b, b + n, second);
         std::copy(b, b + n, third);
         k.swiglu_backward(to, second, third, n);
       }},
      {"norm: sum_of_squares", [&](const Kernels& k) { result = k.sum_of_squares(a, n); }},
      {"norm: scale", [&](const Kernels& k) { k.scale(to, a, b, 0.5F, n); }},
      {"norm: gradient",
       [&](const Kernels& k) { k.norm_gradient(to, a, b, a, nullptr, 0.5F, 0.5F, n); }},
      {"precise_sum_of_squares",
       [&](const Kernels& k) { result = k.precise_sum_of_squares(a, n); }}};

  std::vector<const Kernels*> kernels;
  fmt::print("{} fp32 numbers, 1 thread, microseconds\n{:<24}", n, "");
  for (const auto capability :
       {CpuCapability::kPortable, CpuCapability::kAvx2, CpuCapability::kAvx512}) {
    if (capability > longspan::widest_cpu_capability()) continue;
    kernels.push_back(&longspan::vector_math::kernels_of(capability));
    fmt::print("{:>10}", kernels.back()->instructions);
  }
  fmt::print("   widest is faster\n");
  for (const auto& [name, work] : loops) {
    std::vector<std::function<void()>> contenders;
    for (const Kernels* k : kernels) contenders.push_back([&work = work, k] { work(*k); });
    const std::vector<double> best = best_in_turns(contenders, 300);
    fmt::print("{:<24}", name);
    for (const double time : best) fmt::print("{:>10.1f}", time);
    fmt::print("{:>10.1f} times\n", best.front() / best.back());
  }
}

void compare_norms(int64_t n) {
  at::Tensor values = at::empty({n}).set_requires_grad(true);
  values.mutable_grad() = at::randn({n});
  const std::vector<at::Tensor> gradients = {values.grad()};
  const double exact = std::sqrt(values.grad().to(at::kDouble).square().sum().item<double>());
  double torch = 0, ours = 0;
  const std::vector<double> best =
      best_in_turns({[&] { torch = at::_foreach_norm(gradients, 2)[0].item<double>(); },
                     [&] { ours = longspan::global_gradient_norm({{"weight", values}}); }},
                    20);
  fmt::print("\nNorm of {} fp32 numbers, {} threads\n", n, at::get_num_threads());
  fmt::print("  torch's _foreach_norm {:>8.1f} ms, relative error {:.1e}\n", best[0] / 1e3,
             std::abs(torch - exact) / exact);
  fmt::print("  Longspan              {:>8.1f} ms, relative error {:.1e}\n", best[1] / 1e3,
             std::abs(ours - exact) / exact);
}

}  // namespace

int main(int argc, char** argv) {
  const at::NoGradGuard no_grad;
  compare_loops(argc > 1 ? std::max(1L, std::atol(argv[1])) : 49152);
  compare_norms(20'000'000);
}
