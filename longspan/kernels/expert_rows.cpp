#include "longspan/kernels/expert_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

constexpr int64_t kNumbersOfTask = 1 << 15;

template <typename Out, typename In>
void add_expert_rows(at::Tensor& out_CD, const at::Tensor& rows_R, const at::Tensor& x_RD,
                     const at::Tensor& weights_R) {
  Out* const out = out_CD.mutable_data_ptr<Out>();
  const In* const x = x_RD.const_data_ptr<In>();
  const int64_t* const rows = rows_R.const_data_ptr<int64_t>();
  const Out* const weights = weights_R.defined() ? weights_R.const_data_ptr<Out>() : nullptr;
  const int64_t D = x_RD.size(1);
  at::parallel_for(0, x_RD.size(0), std::max<int64_t>(1, kNumbersOfTask / std::max<int64_t>(1, D)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r) {
                       Out* const to = out + rows[r] * D;
                       const In* const from = x + r * D;
                       const Out weight = weights == nullptr ? Out(1) : weights[r];
                       for (int64_t d = 0; d < D; ++d) to[d] += weight * static_cast<Out>(from[d]);
                     }
                   });
}

}  // namespace

at::Tensor rows_by_expert(const at::Tensor& experts_CK, int64_t num_experts,
                          const at::Tensor& counts_C) {
  const at::Tensor ones_CK = counts_C.defined()
                                 ? counts_C.to(at::kLong).unsqueeze(1).expand_as(experts_CK)
                                 : at::ones_like(experts_CK);
  return at::zeros({num_experts}, experts_CK.options())
      .index_add_(0, experts_CK.reshape({-1}), ones_CK.reshape({-1}));
}

void add_weighted_rows_(at::Tensor& out_CD, const at::Tensor& rows_R, const at::Tensor& x_RD,
                        const at::Tensor& weights_R) {
  const auto dtype = out_CD.scalar_type(), from = x_RD.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble, "rows are added in fp32 or fp64");
  const at::Tensor weights = weights_R.defined() ? weights_R.to(dtype).contiguous() : weights_R;
  if (!out_CD.is_cpu() || !out_CD.is_contiguous() || !x_RD.is_contiguous() ||
      !rows_R.is_contiguous()) {
    at::Tensor x = x_RD.to(dtype);
    if (weights.defined()) x = x * weights.unsqueeze(1);
    out_CD.index_add_(0, rows_R, x);
  } else if (dtype == at::kDouble) {
    add_expert_rows<double, double>(out_CD, rows_R, x_RD.to(at::kDouble), weights);
  } else if (from == at::kBFloat16) {
    add_expert_rows<float, at::BFloat16>(out_CD, rows_R, x_RD, weights);
  } else {
    add_expert_rows<float, float>(out_CD, rows_R, x_RD.to(at::kFloat), weights);
  }
}

at::Tensor row_dots(const at::Tensor& a_RD, const at::Tensor& b_RD) {
  const auto dtype = arithmetic_dtype(a_RD.scalar_type());
  return (a_RD.to(dtype) * b_RD.to(dtype)).sum(1);
}

}  // namespace longspan
