// Times the gated delta rule, forward and backward, by row length; the time per token must not
// grow. Usage: bench_recurrence [threads [tokens ...]]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "longspan/kernels/gated_delta_rule.h"

namespace {

using namespace longspan;

constexpr int64_t kKeyHeads = 4, kValueHeads = 8, kHeadDim = 128;  // a quarter of Qwen3.5-9B's
constexpr int kRounds = 3;

double seconds_of(int64_t tokens) {
  const auto random = [&](int64_t heads) {
    return at::randn({tokens, heads, kHeadDim}).requires_grad_(true);
  };
  const DeltaRuleInputs inputs{random(kKeyHeads), random(kKeyHeads), random(kValueHeads),
                               at::rand({tokens, kValueHeads}).neg().requires_grad_(true),
                               at::rand({tokens, kValueHeads}).requires_grad_(true)};
  const at::Tensor dout = at::randn({tokens, kValueHeads, kHeadDim});
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const DeltaRuleResult result = gated_delta_rule(inputs, Packing::single(tokens), {});
    result.out_TNV.backward(dout);
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  std::vector<int64_t> lengths;
  for (int i = 2; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
  if (lengths.empty()) lengths = {4096, 8192, 16384, 32768, 65536};
  fmt::print("{} key heads, {} value heads of {}, {} threads, forward and backward\n", kKeyHeads,
             kValueHeads, kHeadDim, at::get_num_threads());
  fmt::print("{:>8} {:>10} {:>14} {:>20}\n", "tokens", "seconds", "us a token",
             "of the shortest's");
  double first = 0;
  for (const int64_t tokens : lengths) {
    const double seconds = seconds_of(tokens), each = seconds / static_cast<double>(tokens);
    if (first == 0) first = each;
    fmt::print("{:>8} {:>10.3f} {:>14.2f} {:>19.2f}x\n", tokens, seconds, 1e6 * each, each / first);
  }
}
