#include "longspan/kernels/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/linear.h"

namespace longspan {
namespace {

constexpr int64_t kColumnsOfTask = 64;

// Tokens repeat, so tasks take columns: no two tasks add to the same number, and sums do not depend
// on the number of threads.
void add_rows(at::Tensor& sum_VD, const at::Tensor& tokens_T, const at::Tensor& rows_TD) {
  const int64_t T = rows_TD.size(0), D = rows_TD.size(1);
  const int64_t* tokens = tokens_T.const_data_ptr<int64_t>();
  const float* rows = rows_TD.const_data_ptr<float>();
  float* sum = sum_VD.mutable_data_ptr<float>();
  at::parallel_for(0, D, kColumnsOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < T; ++t) {
      float* to = sum + tokens[t] * D;
      const float* from = rows + t * D;
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) to[d] += from[d];
    }
  });
}

/// The same for bf16: sums each token's rows in fp32 and rounds once.
void add_rows_bf16(at::Tensor& sum_VD, const at::Tensor& tokens_T, const at::Tensor& rows_TD) {
  const int64_t T = rows_TD.size(0), D = rows_TD.size(1);
  const int64_t* tokens = tokens_T.const_data_ptr<int64_t>();
  std::vector<int64_t> places(T);
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(),
                   [&](int64_t a, int64_t b) { return tokens[a] < tokens[b]; });
  const auto* rows = rows_TD.const_data_ptr<c10::BFloat16>();
  auto* sum = sum_VD.mutable_data_ptr<c10::BFloat16>();
  at::parallel_for(0, D, kColumnsOfTask, [&](int64_t begin, int64_t end) {
    std::vector<float> total(end - begin);
    for (int64_t i = 0; i < T;) {
      const int64_t token = tokens[places[i]];
      c10::BFloat16* to = sum + token * D + begin;
      std::copy(to, to + (end - begin), total.begin());
      for (; i < T && tokens[places[i]] == token; ++i) {
        const c10::BFloat16* from = rows + places[i] * D + begin;
        for (int64_t d = 0; d < end - begin; ++d) total[d] += static_cast<float>(from[d]);
      }
      std::copy(total.begin(), total.end(), to);
    }
  });
}

/// For other devices, some columns at a time. The number of distinct tokens stays on the device, so
/// that the host need not wait. A token's sum is at the token's first place, and all places of the
/// token write this sum.
void add_rows_precisely(at::Tensor& sum_VD, const at::Tensor& tokens_T, const at::Tensor& rows_TD) {
  constexpr int64_t kColumns = 512;
  const int64_t T = tokens_T.size(0);
  const at::Tensor first_V = at::full({sum_VD.size(0)}, T, tokens_T.options());
  first_V.scatter_reduce_(0, tokens_T, at::arange(T, tokens_T.options()), "amin");
  const at::Tensor first_T = first_V.index_select(0, tokens_T);
  for (int64_t begin = 0; begin < sum_VD.size(1); begin += kColumns) {
    const int64_t size = std::min(kColumns, sum_VD.size(1) - begin);
    auto part = sum_VD.narrow(1, begin, size);
    const at::Tensor total = part.index_select(0, tokens_T).to(at::kFloat);
    total.index_add_(0, first_T, rows_TD.narrow(1, begin, size).to(at::kFloat));
    part.index_copy_(0, tokens_T, total.to(part.scalar_type()).index_select(0, first_T));
  }
}

void add_to(at::Tensor& sum_VD, const at::Tensor& tokens_T, const at::Tensor& rows_TD) {
  const bool dense =
      sum_VD.is_cpu() && sum_VD.is_contiguous() && sum_VD.scalar_type() == rows_TD.scalar_type();
  if (dense && sum_VD.scalar_type() == at::kFloat) {
    add_rows(sum_VD, tokens_T, rows_TD);
  } else if (dense && sum_VD.scalar_type() == at::kBFloat16) {
    add_rows_bf16(sum_VD, tokens_T, rows_TD);
  } else if (sum_VD.scalar_type() == at::kBFloat16) {
    add_rows_precisely(sum_VD, tokens_T, rows_TD);
  } else {
    sum_VD.index_add_(0, tokens_T, rows_TD.to(sum_VD.scalar_type()));
  }
}

}  // namespace

at::Tensor embed(const at::Tensor& weight_VD, const at::Tensor& tokens_T, at::ScalarType dtype,
                 std::optional<int64_t> padding_token, double scale) {
  // As in transformers: for a bf16 weight the scale is a bf16 number.
  if (scale != 1.0)
    scale = at::scalar_tensor(scale, at::TensorOptions(weight_VD.scalar_type())).item<double>();
  at::Tensor h_TD;
  {
    c10::NoGradGuard no_grad;
    h_TD = weight_VD.detach().index_select(0, tokens_T).to(dtype);
    if (scale != 1.0) h_TD.mul_(scale);
  }
  if (!needs_backward({}, {weight_VD})) return h_TD;
  return attach_backward({h_TD}, {}, {weight_VD},
                         [weight_VD, tokens_T, padding_token,
                          scale](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
                           c10::NoGradGuard no_grad;
                           at::Tensor& sum_VD = gradient_of(weight_VD);
                           at::Tensor padding_D;
                           if (padding_token) padding_D = sum_VD[*padding_token].clone();
                           const at::Tensor rows_TD =
                               scale == 1.0 ? gradients[0] : gradients[0] * scale;
                           add_to(sum_VD, tokens_T.contiguous(), rows_TD.contiguous());
                           if (padding_token) sum_VD[*padding_token].copy_(padding_D);
                           return {};
                         })[0];
}

}  // namespace longspan
