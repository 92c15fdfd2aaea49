#include "longspan/kernels/causal_conv.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "longspan/cpu/vector_math.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

namespace vm = vector_math;

constexpr int64_t kChannels = 256;  // of a task

/// A row with the tokens before it, and the begins of its documents.
struct Row {
  at::Tensor x_TC;              // with the tokens before the row
  int64_t num_before;           // before the row
  std::vector<int64_t> begins;  // for each token, the first that it may see
  at::Tensor weight_WC;

  int64_t T() const { return x_TC.size(0) - num_before; }
  int64_t W() const { return weight_WC.size(0); }
};

/// sum[c] = sum over w of weight[w] x[..]: a token's channels [first, first + n) before silu.
template <typename S, typename A>
void convolve(A* sum, const Row& row, int64_t token, int64_t first, int64_t n) {
  const int64_t C = row.x_TC.size(1), W = row.W(), at = token + row.num_before;
  const S* x = row.x_TC.const_data_ptr<S>();
  const A* weight = row.weight_WC.const_data_ptr<A>();
  std::fill(sum, sum + n, A{0});
  for (int64_t w = 0; w < W; ++w) {
    const int64_t source = at - (W - 1) + w;
    if (source < row.begins[token]) continue;
    const S* from = x + source * C + first;
    const A* factor = weight + w * C + first;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) sum[c] += factor[c] * static_cast<A>(from[c]);
  }
}

Row row_of(const at::Tensor& x_TC, const ParameterRows& weight, const Packing& packing,
           const at::Tensor& before_PC) {
  TORCH_CHECK(x_TC.size(0) == packing.num_tokens(), "a convolution over ", x_TC.size(0),
              " tokens of a row of ", packing.num_tokens());
  const bool goes_on = before_PC.defined() && before_PC.size(0) > 0;
  Row row;
  row.num_before = goes_on ? before_PC.size(0) : 0;
  row.x_TC = goes_on ? at::cat({before_PC.to(x_TC.scalar_type()), x_TC}) : x_TC.contiguous();
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    const int64_t begin = d == 0 ? 0 : packing.begin(d) + row.num_before;
    row.begins.insert(row.begins.end(), packing.length(d), begin);
  }
  row.weight_WC =
      weight.values().flatten(1).to(arithmetic_dtype(x_TC.scalar_type())).t().contiguous();
  return row;
}

/// Writes y of all tokens.
template <typename S>
void forward(const Row& row, S* y) {
  using A = Arithmetic<S>;
  const int64_t C = row.x_TC.size(1);
  at::parallel_for(0, row.T(), std::max<int64_t>(1, 16384 / std::max<int64_t>(C, 1)),
                   [&](int64_t begin, int64_t end) {
                     std::vector<A> sum(C), ones(C, A{1});
                     for (int64_t t = begin; t < end; ++t) {
                       convolve<S>(sum.data(), row, t, 0, C);
                       vm::swiglu(sum.data(), sum.data(), ones.data(), C);
                       for (int64_t c = 0; c < C; ++c) y[t * C + c] = static_cast<S>(sum[c]);
                     }
                   });
}

/// Writes d loss / d x of all tokens, also of those before the row, and adds to dweight_WC.
template <typename S>
void backward(const Row& row, const S* dy, S* dx, double* dweight) {
  using A = Arithmetic<S>;
  constexpr int64_t kSlab = 512;  // tokens whose products are summed in A
  const int64_t C = row.x_TC.size(1), W = row.W(), P = row.num_before;
  at::parallel_for(0, (C + kChannels - 1) / kChannels, 1, [&](int64_t task, int64_t end) {
    for (; task < end; ++task) {
      const int64_t first = task * kChannels, n = std::min(kChannels, C - first);
      std::vector<A> sum(n), dsum(n), ones(n), sums(W * n, A{0});
      // Incomplete sums, by place modulo W.
      std::vector<A> open(W * n, A{0});
      const auto weight_sums = [&](int64_t w) { return sums.data() + w * n; };
      const auto flush = [&] {
        for (int64_t w = 0; w < W; ++w) {
          for (int64_t c = 0; c < n; ++c) {
            dweight[w * C + first + c] += static_cast<double>(weight_sums(w)[c]);
            weight_sums(w)[c] = 0;
          }
        }
      };
      const auto close = [&](int64_t place) {
        A* complete = open.data() + (place % W) * n;
        for (int64_t c = 0; c < n; ++c) {
          dx[place * C + first + c] = static_cast<S>(complete[c]);
          complete[c] = 0;
        }
      };
      for (int64_t t = row.T() - 1; t >= 0; --t) {
        convolve<S>(sum.data(), row, t, first, n);
        std::fill(ones.begin(), ones.end(), A{1});
        for (int64_t c = 0; c < n; ++c) dsum[c] = static_cast<A>(dy[t * C + first + c]);
        vm::swiglu_backward(sum.data(), ones.data(), dsum.data(), n);
        for (int64_t w = 0; w < W; ++w) {
          const int64_t source = t + P - (W - 1) + w;
          if (source < row.begins[t]) continue;
          const S* x = row.x_TC.const_data_ptr<S>() + source * C + first;
          const A* weight = row.weight_WC.const_data_ptr<A>() + w * C + first;
          A *of_weight = weight_sums(w), *of_x = open.data() + (source % W) * n;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) {
            of_weight[c] += sum[c] * static_cast<A>(x[c]);
            of_x[c] += sum[c] * weight[c];
          }
        }
        close(t + P);
        if (t % kSlab == 0) flush();
      }
      for (int64_t place = P - 1; place >= 0; --place) close(place);
    }
  });
}

}  // namespace

at::Tensor causal_conv_silu(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                            const Packing& packing, const at::Tensor& before_PC) {
  if (!x_TC.is_cpu()) return causal_conv_silu_composed(x_TC, weight_C1W, packing, before_PC);
  std::vector<at::Tensor> inputs{x_TC};
  if (before_PC.defined()) inputs.push_back(before_PC);
  Row row;
  at::Tensor y_TC;
  {
    const c10::NoGradGuard no_grad;
    row = row_of(x_TC.detach(), weight_C1W, packing,
                 before_PC.defined() ? before_PC.detach() : before_PC);
    TORCH_CHECK(row.num_before < row.W(), "a convolution over ", row.W(), " tokens goes on from ",
                row.num_before);
    y_TC = at::empty(x_TC.sizes(), x_TC.options().requires_grad(false));
    with_type(x_TC.scalar_type(),
              [&](auto storage) { forward(row, y_TC.mutable_data_ptr<decltype(storage)>()); });
  }
  if (!needs_backward(inputs, {weight_C1W.parameter})) return y_TC;
  return attach_backward(
      {y_TC}, inputs, {weight_C1W.parameter},
      [row = std::move(row), weight_C1W, has_before = before_PC.defined(),
       before_dtype = before_PC.defined() ? before_PC.scalar_type()
                                          : at::kFloat](std::vector<at::Tensor> gradients) {
        const c10::NoGradGuard no_grad;
        const at::Tensor dy = gradients[0].contiguous(), dx = at::zeros_like(row.x_TC);
        const at::Tensor dweight_WC =
            at::zeros(row.weight_WC.sizes(), dy.options().dtype(at::kDouble));
        with_type(dy.scalar_type(), [&](auto storage) {
          using S = decltype(storage);
          backward(row, dy.const_data_ptr<S>(), dx.mutable_data_ptr<S>(),
                   dweight_WC.mutable_data_ptr<double>());
        });
        weight_C1W.add_gradient(dweight_WC.t().unsqueeze(1));
        std::vector<at::Tensor> result{dx.narrow(0, row.num_before, row.T())};
        if (has_before) result.push_back(dx.narrow(0, 0, row.num_before).to(before_dtype));
        return result;
      })[0];
}

}  // namespace longspan
