#include "longspan/models/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "longspan/models/fused_op.h"
#include "longspan/models/linear.h"
#include "longspan/models/product.h"
#include "longspan/models/row_kernels.h"

namespace longspan {
namespace {

at::ScalarType precise(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// Calls body(begin, size, logits_CV) for chunks of rows, the logits in fp32 or fp64 and its to
/// overwrite.
template <typename Body>
void for_chunks(const at::Tensor& hidden_LD, const at::Tensor& weight_VD, int64_t chunk_bytes,
                Body&& body) {
  const int64_t L = hidden_LD.size(0), V = weight_VD.size(0);
  const auto dtype = precise(hidden_LD.scalar_type());
  const int64_t chunk =
      std::clamp(chunk_bytes / (V * static_cast<int64_t>(c10::elementSize(dtype))), kMinHeadRows,
                 kMostHeadRows);
  const auto buffer = at::empty({std::min(chunk, L), V}, hidden_LD.options().dtype(dtype));
  for (int64_t begin = 0; begin < L; begin += chunk) {
    const int64_t size = std::min(chunk, L - begin);
    auto logits_CV = buffer.narrow(0, 0, size);
    const auto hidden_CD = hidden_LD.narrow(0, begin, size);
    if (dtype == hidden_LD.scalar_type()) {
      product_out(logits_CV, hidden_CD, weight_VD.t());
    } else {
      logits_CV.copy_(product(hidden_CD, weight_VD.t()));
    }
    body(begin, size, logits_CV);
  }
}

/// For one chunk: logits -> d loss / d logits, into dhidden and dweight (where defined).
void head_backward(at::Tensor& logits_CV, const at::Tensor& labels_C, const at::Tensor& lse_C,
                   const at::Tensor& scale_C, const at::Tensor& hidden_CD,
                   const at::Tensor& weight_VD, at::Tensor dhidden_CD,
                   const at::Tensor& dweight_VD) {
  cross_entropy_gradient_(logits_CV, labels_C, lse_C, scale_C);
  const auto dlogits_CV = logits_CV.to(hidden_CD.scalar_type());
  if (dhidden_CD.defined()) product_out(dhidden_CD, dlogits_CV, weight_VD);
  if (!dweight_VD.defined()) return;
  if (dweight_VD.scalar_type() == dlogits_CV.scalar_type()) {
    add_product_(dweight_VD, dlogits_CV.t(), hidden_CD);
  } else {
    dweight_VD.add_(product(dlogits_CV.t(), hidden_CD));
  }
}

}  // namespace

at::Tensor linear_token_logprobs(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                 const at::Tensor& labels_L, int64_t chunk_bytes) {
  const int64_t L = hidden_LD.size(0);
  const auto options = hidden_LD.options().dtype(at::kDouble);
  at::Tensor lse_L, logprobs_L;
  {
    c10::NoGradGuard no_grad;
    lse_L = at::empty({L}, options);
    auto picked_L = at::empty({L}, options);
    for_chunks(hidden_LD, weight_VD.to(hidden_LD.scalar_type()), chunk_bytes,
               [&](int64_t begin, int64_t size, at::Tensor& logits_CV) {
                 log_sum_exp_rows(logits_CV, labels_L.narrow(0, begin, size),
                                  lse_L.narrow(0, begin, size), picked_L.narrow(0, begin, size));
               });
    logprobs_L = picked_L - lse_L;
  }
  if (!needs_backward({hidden_LD}, {weight_VD})) return logprobs_L;
  return attach_backward(
      {logprobs_L}, {hidden_LD}, {weight_VD},
      [hidden_LD = hidden_LD.detach(), weight_VD, labels_L, lse_L,
       chunk_bytes](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
        c10::NoGradGuard no_grad;
        // d(picked - lse) / d logits is onehot - softmax.
        const auto dtype = precise(hidden_LD.scalar_type());
        const auto scale_L = gradients[0].neg().to(dtype).contiguous();
        auto dhidden_LD = at::empty_like(hidden_LD);
        const auto weight = weight_VD.detach().to(hidden_LD.scalar_type());
        const auto dweight_VD = weight_VD.requires_grad() ? gradient_of(weight_VD) : at::Tensor();
        for_chunks(hidden_LD, weight, chunk_bytes,
                   [&](int64_t begin, int64_t size, at::Tensor& logits_CV) {
                     const auto part = [&](const at::Tensor& x) {
                       return x.narrow(0, begin, size);
                     };
                     head_backward(logits_CV, part(labels_L), part(lse_L), part(scale_L),
                                   part(hidden_LD), weight, part(dhidden_LD), dweight_VD);
                   });
        return {dhidden_LD};
      })[0];
}

at::Tensor linear_nll_sum(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                          const at::Tensor& labels_L, int64_t chunk_bytes) {
  if (!needs_backward({hidden_LD}, {weight_VD})) {
    return linear_token_logprobs(hidden_LD, weight_VD, labels_L, chunk_bytes).sum().neg();
  }
  const int64_t L = hidden_LD.size(0);
  const auto options = hidden_LD.options().dtype(at::kDouble);
  at::Tensor nll, dhidden_LD, dweight_VD;
  {
    c10::NoGradGuard no_grad;
    const auto hidden = hidden_LD.detach();
    const auto lse_L = at::empty({L}, options), picked_L = at::empty({L}, options);
    const auto scale_L = at::ones({L}, options.dtype(precise(hidden.scalar_type())));
    if (hidden_LD.requires_grad()) dhidden_LD = at::empty_like(hidden);
    if (weight_VD.requires_grad()) {
      dweight_VD = at::zeros_like(weight_VD.detach(), at::MemoryFormat::Contiguous);
    }
    const auto weight = weight_VD.detach().to(hidden.scalar_type());
    for_chunks(hidden, weight, chunk_bytes,
               [&](int64_t begin, int64_t size, at::Tensor& logits_CV) {
                 const auto part = [&](const at::Tensor& x) {
                   return x.defined() ? x.narrow(0, begin, size) : x;
                 };
                 log_sum_exp_rows(logits_CV, part(labels_L), part(lse_L), part(picked_L));
                 head_backward(logits_CV, part(labels_L), part(lse_L), part(scale_L), part(hidden),
                               weight, part(dhidden_LD), dweight_VD);
               });
    nll = (lse_L - picked_L).sum();
  }
  return attach_backward({nll}, {hidden_LD}, {weight_VD},
                         [dhidden_LD, dweight_VD,
                          weight_VD](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
                           c10::NoGradGuard no_grad;
                           if (dweight_VD.defined()) {
                             add_gradient(weight_VD, dweight_VD.mul_(gradients[0]));
                           }
                           if (!dhidden_LD.defined()) return {};
                           return {dhidden_LD.mul_(gradients[0])};
                         })[0];
}

}  // namespace longspan
