// Compares attention, forward and backward, to the machine's GEMM rate, the limit of training speed
// on long rows. Usage: bench_attention [threads [tokens ...]]; attention_rate.py runs it under each
// instruction set. One thread is timed by its CPU time, several by the wall clock. T: tokens, N:
// query heads, M: kv heads, G = N / M: query heads of a kv head, H: head dim.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "longspan/attention/flash/flash_attention.h"
#include "longspan/cpu/capability.h"

namespace {

constexpr int64_t N = 8, M = 2;  // as in the model of sft_speed.py
constexpr int64_t kModelDim = 512, kMlpDim = 1408;
constexpr double kSeconds = 6.0;  // for all contenders at one length
constexpr int kLeastRounds = 5;

struct Contender {
  std::string name;
  double flops;  // multiplications and additions that the method needs at least
  std::function<void()> work;
  double best_seconds = 1e30;
};

double seconds_now() {
  timespec now;
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const std::function<void()>& work) {
  const double begin = seconds_now();
  work();
  return seconds_now() - begin;
}

// The contenders take turns, and the best time counts, since other load only adds time.
void time_in_turns(std::vector<Contender>& contenders) {
  for (Contender& contender : contenders) contender.work();  // warm-up
  double spent = 0.0;
  for (int round = 0; round < kLeastRounds || spent < kSeconds; ++round) {
    for (Contender& contender : contenders) {
      const double seconds = seconds_of(contender.work);
      contender.best_seconds = std::min(contender.best_seconds, seconds);
      spent += seconds;
    }
  }
}

// ATen's layout of grouped-query attention without repeated keys: a batch of M attentions of G
// heads whose keys have stride 0 over the heads.
at::Tensor grouped_queries(const at::Tensor& x_TNH) {
  return x_TNH.unflatten(1, {M, N / M}).permute({1, 2, 0, 3});
}
at::Tensor grouped_keys(const at::Tensor& x_TMH) {
  return x_TMH.transpose(0, 1).unsqueeze(1).expand({M, N / M, x_TMH.size(0), x_TMH.size(2)});
}

// Multiplies a by the transpose of b, by oneDNN.
void multiply_by_onednn(const at::Tensor& a, const at::Tensor& b) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, c10::List<std::optional<at::Scalar>>,
                            std::optional<std::string_view>);
  static const auto linear = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                 .typed<Linear>();
  linear.call(a, b, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

void run(int64_t T, int64_t H) {
  const auto random = [T, H](int64_t heads) { return at::randn({T, heads, H}); };
  const at::Tensor q_TNH = random(N), k_TMH = random(M), v_TMH = random(M), dout_TNH = random(N);
  const longspan::AttentionSpec spec = longspan::plain_attention(N, M, H);
  const std::vector<longspan::Block> blocks = {{0, T, 0, T, /*causal=*/true}};

  const at::Tensor q = grouped_queries(q_TNH), k = grouped_keys(k_TMH), v = grouped_keys(v_TMH),
                   dout = grouped_queries(dout_TNH);
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
  const longspan::AttentionResult own = longspan::flash::forward(q_TNH, k_TMH, v_TMH, spec, blocks);

  // The product in the MLP.
  const at::Tensor a = at::randn({2048, kModelDim}), b = at::randn({kModelDim, kMlpDim}),
                   transposed = b.t().contiguous();
  at::Tensor product = at::empty({2048, kMlpDim});
  constexpr int kProducts = 4;
  const double product_flops = 2.0 * kProducts * 2048 * kModelDim * kMlpDim;

  // Pairs of queries and keys in causal attention.
  const double head_pairs = N * (static_cast<double>(T) * (T + 1) / 2);
  const longspan::FlopCost pair = longspan::pair_flops_of(spec);
  const double forward = head_pairs * static_cast<double>(pair.forward),
               backward = head_pairs * static_cast<double>(pair.backward);
  std::vector<Contender> contenders;
  contenders.push_back({"GEMM, MKL", product_flops, [&] {
                          for (int i = 0; i < kProducts; ++i) at::mm_out(product, a, b);
                        }});
  contenders.push_back({"GEMM, oneDNN", product_flops, [&] {
                          for (int i = 0; i < kProducts; ++i) multiply_by_onednn(a, transposed);
                        }});
  contenders.push_back({"forward, ATen", forward, [&] {
                          at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
                        }});
  contenders.push_back({"forward, Longspan", forward,
                        [&] { longspan::flash::forward(q_TNH, k_TMH, v_TMH, spec, blocks); }});
  contenders.push_back({"backward, ATen", backward, [&, &out = out, &lse = lse] {
                          at::_scaled_dot_product_flash_attention_for_cpu_backward(
                              dout, q, k, v, out, lse, 0.0, true);
                        }});
  contenders.push_back({"backward, Longspan", backward, [&] {
                          longspan::flash::backward(
                              {dout_TNH, q_TNH, k_TMH, v_TMH, own.out_TNH, own.lse_NT}, spec,
                              blocks);
                        }});
  time_in_turns(contenders);

  const auto rate_of = [](const Contender& c) { return c.flops / c.best_seconds; };
  const double gemm_rate = std::max(rate_of(contenders[0]), rate_of(contenders[1]));
  fmt::print("T = {}, {} query heads, {} kv heads of {}, fp32\n", T, N, M, H);
  for (const Contender& contender : contenders) {
    fmt::print("  {:<20} {:>9.2f} ms {:>8.1f} GFLOP/s {:>5.0f} % of GEMM\n", contender.name,
               contender.best_seconds * 1e3, rate_of(contender) / 1e9,
               100 * rate_of(contender) / gemm_rate);
  }
  fmt::print("  Longspan against ATen: forward {:.2f}x, backward {:.2f}x\n",
             contenders[2].best_seconds / contenders[3].best_seconds,
             contenders[4].best_seconds / contenders[5].best_seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const c10::InferenceMode no_autograd;
  at::set_num_threads(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
  std::vector<int64_t> lengths;
  for (int i = 2; i < argc; ++i) lengths.push_back(std::max(1L, std::atol(argv[i])));
  if (lengths.empty()) lengths = {2048, 8192};
  fmt::print(
      "{} threads; causal pairs only; 2 matrix products forward, 5 backward; Longspan {}, ATen "
      "{}\n",
      at::get_num_threads(), longspan::name_of(longspan::cpu_capability()),
      at::get_cpu_capability());
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t length : lengths) run(length, head_dim);
  }
}
