// The kernels over rows, of recurrences and of 8-bit AdamW on a GPU beside the same of ATen's
// operators: microseconds by the GPU's own clock, and bytes that must be read and written, a
// second. Tensors are larger than the GPU's cache. And the gemms of experts beside one expert after
// the other, and beside at::_grouped_mm: a million times a million operations a second. Usage:
// bench_cuda_rows [numbers of a row...]
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "longspan/cuda/cuda.h"
#include "longspan/cuda/kernels.h"
#include "longspan/kernels/causal_conv.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/kernels/gemm.h"
#include "longspan/kernels/grouped_gemm.h"
#include "longspan/optim/adamw_8bit_device.h"
#include "longspan/optim/block_quantization.h"

namespace {

using longspan::RotaryTable;

/// Of one of the tensors that an op works on.
constexpr int64_t kNumbers = int64_t{64} << 20;
constexpr int kRounds = 20;

double microseconds_of(const std::function<void()>& work) {
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  const c10::Stream stream = gpu.getStream(c10::Device(at::kCUDA, 0));
  // At first kernels are compiled and memory is allocated.
  for (int i = 0; i < 3; ++i) work();
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT),
        end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    best = std::min(best, 1e3 * begin.elapsedTime(end));
  }
  return best;
}

void compare(const std::string& name, int64_t num_bytes, const std::function<void()>& work) {
  const auto rate = [&](double microseconds) {
    return static_cast<double>(num_bytes) / microseconds / 1e3;
  };
  const double ours = microseconds_of(work);
  double composed = 0;
  {
    const longspan::cuda::WithoutKernels without;
    composed = microseconds_of(work);
  }
  fmt::print("{:<36} {:>9.1f} us {:>6.0f} GB/s   composed {:>9.1f} us {:>6.0f} GB/s   {:>5.1f}x\n",
             name, ours, rate(ours), composed, rate(composed), composed / ours);
}

std::string name_of(at::ScalarType dtype) { return dtype == at::kFloat ? "fp32" : "bf16"; }

/// `h`: of the hidden states. `y`: what layers compute in.
void compare_norms(int64_t D, at::ScalarType h_dtype, at::ScalarType y_dtype) {
  const int64_t T = kNumbers / D;
  const auto options = at::device(at::kCUDA);
  const at::Tensor h = at::randn({T, D}, options).to(h_dtype),
                   dy = at::randn({T, D}, options).to(y_dtype),
                   residual = at::randn({T, D}, options).to(h_dtype),
                   weight = at::randn({D}, options), dweight = at::zeros({D}, options);
  const at::Tensor dh = at::empty_like(h), rstd = longspan::reciprocal_rms(h, 1e-6);
  const auto bytes = [&](int64_t num_h, int64_t num_y) {
    return T * D * (num_h * h.element_size() + num_y * dy.element_size());
  };
  const std::string of = fmt::format("D {} {}/{}", D, name_of(h_dtype), name_of(y_dtype));
  compare("norm, " + of, bytes(1, 1), [&] { longspan::normalize_rows(h, weight, 1e-6, y_dtype); });
  compare("reciprocal_rms, " + of, bytes(1, 0), [&] { longspan::reciprocal_rms(h, 1e-6); });
  compare("scale_rows, " + of, bytes(1, 1),
          [&] { longspan::scale_rows(h, rstd, weight, y_dtype); });
  compare("norm_backward, " + of, bytes(3, 1),
          [&] { longspan::norm_backward_out(dh, dy, h, rstd, weight, residual, dweight); });
  compare("norm_backward, frozen, " + of, bytes(3, 1),
          [&] { longspan::norm_backward_out(dh, dy, h, rstd, weight, residual, {}); });
}

void compare_gates(int64_t D, at::ScalarType dtype) {
  const int64_t T = kNumbers / D;
  const at::Tensor source = at::randn({T, D}, at::device(at::kCUDA)).to(dtype);
  at::Tensor gate = source.clone(), up = source.clone(), act = source.clone();
  const int64_t bytes = T * D * gate.element_size();
  const std::string of = fmt::format("I {} {}", D, name_of(dtype));
  compare("swiglu_out, " + of, 3 * bytes, [&] { longspan::swiglu_out(act, gate, up); });
  compare("swiglu_backward_, " + of, 6 * bytes, [&] { longspan::swiglu_backward_(gate, up, act); });
  compare("geglu_out, " + of, 3 * bytes, [&] { longspan::geglu_out(act, gate, up); });
}

void compare_heads(int64_t H, int64_t num_pairs, at::ScalarType dtype) {
  constexpr int64_t kHeads = 32;
  const int64_t T = kNumbers / (kHeads * H);
  const auto options = at::device(at::kCUDA);
  at::Tensor x = at::randn({T, kHeads, H}, options).to(dtype);
  const RotaryTable table{at::randn({T, num_pairs}, options), at::randn({T, num_pairs}, options)};
  const int64_t bytes = x.numel() * x.element_size();
  const std::string of = fmt::format("H {} F {} {}", H, num_pairs, name_of(dtype));
  compare("rotate_, " + of, 2 * bytes * (2 * num_pairs) / H,
          [&] { longspan::rotate_(x, table, /*inverse=*/false); });
  compare("rotate, " + of, 2 * bytes, [&] { longspan::rotate(x, table, /*inverse=*/true); });
  const at::Tensor rows = x.view({-1, H}), dy = rows.clone(), weight = at::randn({H}, options),
                   dweight = at::zeros({H}, options), dh = at::empty_like(rows);
  const at::Tensor rstd = longspan::reciprocal_rms(rows, 1e-6);
  compare("norm of heads, " + of, 2 * bytes,
          [&] { longspan::normalize_rows(rows, weight, 1e-6, dtype); });
  compare("norm_backward of heads, " + of, 3 * bytes,
          [&] { longspan::norm_backward_out(dh, dy, rows, rstd, weight, {}, dweight); });
  at::Tensor y = at::empty_like(x);
  compare("norm and rotation, " + of, 2 * bytes,
          [&] { longspan::norm_rotate_out(y, nullptr, x, weight, table, 1e-6); });
  compare("its gradient, " + of, 3 * bytes,
          [&] { longspan::norm_rotate_backward(y, x, {}, weight, table, 1e-6, dweight); });
}

void compare_heads_of_vocabulary(int64_t V) {
  const int64_t T = 4 * kNumbers / V;
  const auto options = at::device(at::kCUDA);
  at::Tensor logits = at::randn({T, V}, options);
  const at::Tensor labels = at::randint(V, {T}, options.dtype(at::kLong)),
                   scale = at::ones({T}, options);
  at::Tensor lse = at::empty({T}, options.dtype(at::kDouble)), picked = at::empty_like(lse);
  const std::string of = fmt::format("V {}", V);
  compare("log_sum_exp_rows, " + of, 4 * T * V,
          [&] { longspan::log_sum_exp_rows(logits, labels, lse, picked); });
  compare("cross_entropy_gradient to bf16, " + of, 6 * T * V,
          [&] { longspan::cross_entropy_gradient(logits, labels, lse, scale, at::kBFloat16); });
  compare("cross_entropy_gradient_, " + of, 8 * T * V,
          [&] { longspan::cross_entropy_gradient_(logits, labels, lse, scale); });
}

/// The layers of Qwen3.5-9B with a recurrence. Bytes: of inputs and outputs, and of their
/// gradients.
void compare_recurrences() {
  constexpr int64_t T = 16384, M = 16, N = 32, K = 128, kTaps = 4;
  const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
  const longspan::Packing packing = longspan::Packing::single(T);
  const auto both = [](const std::string& name, int64_t num_bytes, const auto& forward,
                       const std::vector<at::Tensor>& leaves, const at::Tensor& dy) {
    compare(name, num_bytes, forward);
    compare(name + " and its gradient", 3 * num_bytes, [&] {
      const at::AutoGradMode with_gradients(true);
      for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
      forward().backward(dy);
    });
  };
  const auto leaf = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, options).requires_grad_(true);
  };
  const int64_t channels = (2 * M + N) * K;
  const at::Tensor x = leaf({T, channels}),
                   taps = at::randn({channels, 1, kTaps}, options.dtype(at::kFloat));
  taps.requires_grad_(true);
  both(
      "causal_conv, bf16", 2 * x.nbytes(),
      [&] {
        return longspan::causal_conv_silu(x, longspan::ParameterRows::all_of(taps), packing, {});
      },
      {x, taps}, at::randn_like(x));
  const auto gate = [&] { return at::rand({T, N}, options.dtype(at::kFloat)); };
  const longspan::DeltaRuleInputs in{leaf({T, M, K}), leaf({T, M, K}), leaf({T, N, K}),
                                     gate().neg().requires_grad_(true),
                                     gate().requires_grad_(true)};
  both(
      "delta rule, bf16", 2 * (in.q_TMK.nbytes() + in.v_TNV.nbytes() + in.g_TN.nbytes()),
      [&] { return longspan::gated_delta_rule(in, packing, {}).out_TNV; },
      {in.q_TMK, in.k_TMK, in.v_TNV, in.g_TN, in.beta_TN}, at::randn_like(in.v_TNV));
}

void compare_updates(at::ScalarType dtype) {
  const auto options = at::device(at::kCUDA);
  const int64_t num_blocks = kNumbers / longspan::kQuantizationBlock;
  const at::Tensor gradient = at::randn({kNumbers}, options).to(dtype), values = gradient.clone();
  const auto codes = [&] { return at::full({kNumbers}, 127, options.dtype(at::kByte)); };
  const auto scales = [&] { return at::full({num_blocks}, 1e-3, options); };
  const longspan::Moments8bit moments{codes(), scales(), codes(), scales()};
  compare("8-bit AdamW, " + name_of(dtype), 3 * values.nbytes() + 4 * kNumbers + 16 * num_blocks,
          [&] {
            longspan::update_8bit_on_gpu(moments, gradient, values,
                                         {0.9f, 0.999f, 1e-8f, 1.0f, 1e-5f, 1.0f});
          });
}

/// Rows of each of E experts, S in all: the same number for each, or half for the first, half of
/// the rest for the second, and so on, and an eighth of the mean for each at least.
std::vector<int64_t> rows_of_experts(int64_t E, int64_t S, bool skewed) {
  std::vector<int64_t> counts(E, skewed ? S / E / 8 : S / E);
  int64_t left = S;
  for (const int64_t count : counts) left -= count;
  for (int64_t e = 0; e < E && left > 0; ++e) {
    const int64_t more = e + 1 == E ? left : (left + 1) / 2;
    counts[e] += more;
    left -= more;
  }
  return counts;
}

/// The gemms of gates and of the matrices behind them, for E experts of which each row has k.
/// `held`: the dtype of the matrices. From 128 rows of an expert on, a pass casts fp32 matrices.
void compare_experts(int64_t E, int64_t k, int64_t D, int64_t I, at::ScalarType held, bool skewed) {
  constexpr int64_t kRows = 16384;
  const int64_t S = kRows * k;
  const std::vector<int64_t> counts = rows_of_experts(E, S, skewed);
  std::vector<int64_t> begins(E + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor x = at::randn({kRows, D}, options),
                   weights = at::randn({E, I, D}, options).to(held),
                   down = at::randn({E, D, I}, options).to(held),
                   from = at::randint(kRows, {S}, options.dtype(at::kLong)),
                   gradients = at::zeros({E, I, D}, options.dtype(at::kFloat));
  at::Tensor y = at::empty({S, I}, options), dx = at::empty({S, D}, options);
  const longspan::SortedRows sorted =
      longspan::grouped::sort_out(at::tensor(counts).to(at::kCUDA), S);
  longspan::GroupTable table(x.device());
  table.add(weights.unbind(0));
  table.add(gradients.unbind(0));
  table.add(down.unbind(0));
  table.send();
  const auto print = [&](const char* what, const std::function<void()>& work) {
    double microseconds = 0;
    try {
      microseconds = microseconds_of(work);
    } catch (const std::exception& error) {
      const std::string reason = error.what();
      fmt::print("  {:<34} not run: {}\n", what, reason.substr(0, reason.find('\n')));
      return;
    }
    const double flops = 2.0 * static_cast<double>(S * I * D);
    fmt::print("  {:<34} {:>9.1f} us {:>6.0f} TFLOP/s\n", what, microseconds,
               flops / microseconds / 1e6);
  };
  fmt::print("experts: {} of {} a row, D {}, I {}, {} rows, matrices in {}{}\n", k, E, D, I, kRows,
             name_of(held), skewed ? ", half of the rows to the first" : "");
  print("gates at once",
        [&] { longspan::grouped::forward_out(y, {}, sorted, {{{x, from}, table.at(0)}}, {}); });
  print("gates' input gradients at once",
        [&] { longspan::grouped::input_gradient_out(dx, {}, sorted, {{{y}, table.at(0)}}); });
  print("down at once",
        [&] { longspan::grouped::forward_out(dx, {}, sorted, {{{y}, table.at(2)}}, {}); });
  print("down's input gradients at once",
        [&] { longspan::grouped::input_gradient_out(y, {}, sorted, {{{dx}, table.at(2)}}); });
  if (held == at::kFloat) {
    const auto cast = [&] { return longspan::grouped::cast_to_bf16({weights.unbind(0)}); };
    const double microseconds = microseconds_of(cast);
    fmt::print("  {:<34} {:>9.1f} us {:>6.0f} GB/s\n", "cast of gates' matrices", microseconds,
               6.0 * static_cast<double>(weights.numel()) / microseconds / 1e3);
    print("cast, and gates at once", [&] {
      longspan::GroupTable in_bf16(x.device());
      in_bf16.add(cast()[0]);
      in_bf16.send();
      longspan::grouped::forward_out(y, {}, sorted, {{{x, from}, in_bf16.at(0)}}, {});
    });
  }
  const auto rows_of = [&](const at::Tensor& all, int64_t e) {
    return all.narrow(0, begins[e], counts[e]);
  };
  print("one after the other", [&] {
    for (int64_t e = 0; e < E; ++e) {
      at::Tensor part = rows_of(y, e);
      at::mm_out(part, x.index_select(0, rows_of(from, e)), weights[e].to(at::kBFloat16).t());
    }
  });
  const at::Tensor ends = at::tensor(begins).narrow(0, 1, E).to(options.dtype(at::kInt));
  print("at::_grouped_mm", [&] {
    at::_grouped_mm(x.index_select(0, from), weights.to(at::kBFloat16).transpose(1, 2), ends);
  });
  print("their gradients at once",
        [&] { longspan::grouped::add_matrix_gradients(table.at(1), sorted, {y}, {x, from}); });
  print("one after the other", [&] {
    for (int64_t e = 0; e < E; ++e) {
      longspan::add_gemm_(gradients[e], rows_of(y, e).t(), x.index_select(0, rows_of(from, e)));
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (!longspan::cuda_available()) {
    fmt::print("no GPU: {}\n", longspan::why_no_cuda());
    return 1;
  }
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::max(1, std::atoi(argv[i])));
  if (sizes.empty()) sizes = {1536, 3584, 4096, 8192};
  for (const int64_t D : sizes) {
    compare_norms(D, at::kBFloat16, at::kBFloat16);
    compare_norms(D, at::kFloat, at::kBFloat16);
  }
  compare_norms(sizes.front(), at::kFloat, at::kFloat);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    compare_gates(/*D=*/8192, dtype);
    compare_heads(/*H=*/128, /*num_pairs=*/64, dtype);
  }
  compare_heads(/*H=*/256, /*num_pairs=*/32, at::kBFloat16);
  for (const int64_t V : {32000, 151936, 262144}) compare_heads_of_vocabulary(V);
  compare_recurrences();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) compare_updates(dtype);
  for (const at::ScalarType held : {at::kBFloat16, at::kFloat}) {
    for (const bool skewed : {false, true}) {
      compare_experts(/*E=*/128, /*k=*/8, /*D=*/2048, /*I=*/768, held, skewed);  // Qwen3-30B-A3B
      compare_experts(/*E=*/32, /*k=*/4, /*D=*/2880, /*I=*/2880, held, skewed);  // gpt-oss-20b
    }
  }
  return 0;
}
