#include "longspan/models/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "longspan/models/fused_op.h"
#include "longspan/models/linear.h"

namespace longspan {
namespace {

template <typename S>
void add_rows(at::Tensor& sum_VD, const at::Tensor& tokens_T, const at::Tensor& rows_TD) {
  const int64_t T = rows_TD.size(0), D = rows_TD.size(1);
  const int64_t* tokens = tokens_T.const_data_ptr<int64_t>();
  const S* rows = rows_TD.const_data_ptr<S>();
  S* sum = sum_VD.mutable_data_ptr<S>();
  // Tokens repeat, so tasks take columns: no two touch the same number, and the order of the sum
  // does not depend on the number of threads.
  at::parallel_for(0, D, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < T; ++t) {
      S* to = sum + tokens[t] * D;
      const S* from = rows + t * D;
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) to[d] += from[d];
    }
  });
}

}  // namespace

at::Tensor embed(const at::Tensor& weight_VD, const at::Tensor& tokens_T, at::ScalarType dtype) {
  at::Tensor h_TD;
  {
    c10::NoGradGuard no_grad;
    h_TD = weight_VD.detach().index_select(0, tokens_T).to(dtype);
  }
  if (!needs_backward({}, {weight_VD})) return h_TD;
  return attach_backward(
      {h_TD}, {}, {weight_VD},
      [weight_VD, tokens_T](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
        c10::NoGradGuard no_grad;
        at::Tensor& sum_VD = gradient_of(weight_VD);
        const auto rows_TD = gradients[0].contiguous();
        if (sum_VD.is_cpu() && sum_VD.is_contiguous() &&
            sum_VD.scalar_type() == rows_TD.scalar_type() && sum_VD.scalar_type() == at::kFloat) {
          add_rows<float>(sum_VD, tokens_T.contiguous(), rows_TD);
        } else {
          sum_VD.index_add_(0, tokens_T, rows_TD.to(sum_VD.scalar_type()));
        }
        return {};
      })[0];
}

}  // namespace longspan
