#include "longspan/kernels/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/gemm.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/storage_type.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

int64_t chunk_rows(const at::Tensor& hidden_LD, int64_t V, ChunkBytes chunk_bytes) {
  HeadChunk chunk = device_sizes(!hidden_LD.is_cpu()).head;
  chunk.bytes = chunk_bytes.value_or(chunk.bytes);
  return chunk.rows(
      V, static_cast<int64_t>(c10::elementSize(arithmetic_dtype(hidden_LD.scalar_type()))));
}

int64_t num_chunks(const at::Tensor& hidden_LD, int64_t V, ChunkBytes chunk_bytes) {
  const int64_t rows = chunk_rows(hidden_LD, V, chunk_bytes);
  return (hidden_LD.size(0) + rows - 1) / rows;
}

/// Calls body(begin, size, logits_CV) for chunks of rows. Logits are fp32 or fp64, and the body may
/// overwrite them.
template <typename Body>
void for_chunks(const at::Tensor& hidden_LD, const at::Tensor& weight_VD, ChunkBytes chunk_bytes,
                Body&& body) {
  const int64_t L = hidden_LD.size(0), V = weight_VD.size(0);
  const auto dtype = arithmetic_dtype(hidden_LD.scalar_type());
  const int64_t chunk = chunk_rows(hidden_LD, V, chunk_bytes);
  const auto buffer = at::empty({std::min(chunk, L), V}, hidden_LD.options().dtype(dtype));
  for (int64_t begin = 0; begin < L; begin += chunk) {
    const int64_t size = std::min(chunk, L - begin);
    auto logits_CV = buffer.narrow(0, 0, size);
    const auto hidden_CD = hidden_LD.narrow(0, begin, size);
    gemm_out(logits_CV, hidden_CD, weight_VD.t());
    body(begin, size, logits_CV);
  }
}

/// For one chunk: turns logits into d loss / d logits; from these computes dhidden and adds
/// dweight_scale times the product to dweight (where defined). In bf16 the scale must come after
/// the product: gradients at labels are all near -1, and scaled ones would round alike.
void head_backward(at::Tensor& logits_CV, const at::Tensor& labels_C, const at::Tensor& lse_C,
                   const at::Tensor& scale_C, const at::Tensor& hidden_CD,
                   const at::Tensor& weight_VD, at::Tensor dhidden_CD, const at::Tensor& dweight_VD,
                   double dweight_scale = 1.0) {
  const auto dlogits_CV =
      cross_entropy_gradient(logits_CV, labels_C, lse_C, scale_C, hidden_CD.scalar_type());
  if (dhidden_CD.defined()) gemm_out(dhidden_CD, dlogits_CV, weight_VD);
  if (dweight_VD.defined()) add_gemm_(dweight_VD, dlogits_CV.t(), hidden_CD, dweight_scale);
}

/// The gradient of the head's weight: summed over a row's chunks in the forward pass, scaled in the
/// backward where the scale is not known before.
class WeightGradient {
 public:
  WeightGradient(at::Tensor weight_VD, int64_t num_chunks, const HeadGradient& known)
      : weight_VD_(std::move(weight_VD)) {
    if (!weight_VD_.requires_grad()) return;
    const at::Tensor grad = weight_VD_.grad();
    const auto dtype = gradient_dtype(weight_VD_);
    const bool bf16 = dtype == at::kBFloat16, wide = num_chunks > 1 && bf16;
    // Scales a bf16 gradient ahead where possible, since a bf16 product that is scaled later is
    // rounded twice.
    scaled_ahead_ = known.upstream && (bf16 || (grad.defined() && !known.is_zero));
    scale_ = scaled_ahead_ ? *known.upstream : 1.0;
    const bool in_place = grad.defined() && (known.is_zero || scaled_ahead_);
    if (in_place && !wide) {
      sum_VD_ = grad;
    } else if (grad.defined() && scaled_ahead_) {
      sum_VD_ = grad.to(at::kFloat);
    } else {
      sum_VD_ =
          at::zeros(weight_VD_.sizes(), weight_VD_.options().dtype(wide ? at::kFloat : dtype));
    }
  }

  /// The tensor to which chunks add their gradients; undefined where the weight is frozen.
  const at::Tensor& sum() const { return sum_VD_; }
  /// The factor of each chunk's gradient.
  double scale() const { return scale_; }

  void end_forward() {
    if (!scaled_ahead_) return;
    at::Tensor& grad = weight_VD_.mutable_grad();
    if (!grad.defined()) {
      add_gradient(weight_VD_, sum_VD_);
    } else if (!sum_VD_.is_same(grad)) {
      grad.copy_(sum_VD_);
    }
    sum_VD_.reset();
  }

  void end_backward(const at::Tensor& upstream) {
    if (scaled_ahead_) {
      // On a GPU, skips the check, for which the host would wait.
      if (!upstream.is_cpu()) return;
      const double given = upstream.item<double>();
      TORCH_CHECK(std::abs(given - scale_) <= 1e-6 * std::abs(scale_),
                  "the head's gradient was scaled by ", scale_, ", but it is to be scaled by ",
                  given);
      return;
    }
    if (sum_VD_.defined()) {
      at::Tensor& grad = weight_VD_.mutable_grad();
      sum_VD_.mul_(upstream);
      if (!sum_VD_.is_same(grad)) add_gradient(weight_VD_, std::exchange(sum_VD_, {}));
    }
  }

 private:
  at::Tensor weight_VD_, sum_VD_;
  bool scaled_ahead_ = false;
  double scale_ = 1.0;
};

}  // namespace

at::Tensor linear_token_logprobs(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                 const at::Tensor& labels_L, ChunkBytes chunk_bytes) {
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
        const auto dtype = arithmetic_dtype(hidden_LD.scalar_type());
        const auto scale_L = gradients[0].neg().to(dtype).contiguous();
        auto dhidden_LD = at::empty_like(hidden_LD);
        const auto weight = weight_VD.detach().to(hidden_LD.scalar_type());
        PreciseSums sums({weight_VD}, num_chunks(hidden_LD, weight_VD.size(0), chunk_bytes));
        const auto dweight_VD = weight_VD.requires_grad() ? gradient_of(weight_VD) : at::Tensor();
        for_chunks(hidden_LD, weight, chunk_bytes,
                   [&](int64_t begin, int64_t size, at::Tensor& logits_CV) {
                     const auto part = [&](const at::Tensor& x) {
                       return x.narrow(0, begin, size);
                     };
                     head_backward(logits_CV, part(labels_L), part(lse_L), part(scale_L),
                                   part(hidden_LD), weight, part(dhidden_LD), dweight_VD);
                   });
        sums.finish();
        return {dhidden_LD};
      })[0];
}

at::Tensor linear_nll_sum(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                          const at::Tensor& labels_L, ChunkBytes chunk_bytes,
                          const HeadGradient& known) {
  if (!needs_backward({hidden_LD}, {weight_VD})) {
    return linear_token_logprobs(hidden_LD, weight_VD, labels_L, chunk_bytes).sum().neg();
  }
  const int64_t L = hidden_LD.size(0);
  const auto options = hidden_LD.options().dtype(at::kDouble);
  at::Tensor nll, dhidden_LD;
  WeightGradient dweight(weight_VD, num_chunks(hidden_LD, weight_VD.size(0), chunk_bytes), known);
  {
    c10::NoGradGuard no_grad;
    const auto hidden = hidden_LD.detach();
    const auto lse_L = at::empty({L}, options), picked_L = at::empty({L}, options);
    const auto scale_L = at::ones({L}, options.dtype(arithmetic_dtype(hidden.scalar_type())));
    if (hidden_LD.requires_grad()) dhidden_LD = at::empty_like(hidden);
    const auto weight = weight_VD.detach().to(hidden.scalar_type());
    for_chunks(hidden, weight, chunk_bytes,
               [&](int64_t begin, int64_t size, at::Tensor& logits_CV) {
                 const auto part = [&](const at::Tensor& x) {
                   return x.defined() ? x.narrow(0, begin, size) : x;
                 };
                 log_sum_exp_rows(logits_CV, part(labels_L), part(lse_L), part(picked_L));
                 head_backward(logits_CV, part(labels_L), part(lse_L), part(scale_L), part(hidden),
                               weight, part(dhidden_LD), dweight.sum(), dweight.scale());
               });
    dweight.end_forward();
    nll = (lse_L - picked_L).sum();
  }
  return attach_backward({nll}, {hidden_LD}, {weight_VD},
                         [dhidden_LD, dweight](std::vector<at::Tensor> gradients) mutable {
                           c10::NoGradGuard no_grad;
                           dweight.end_backward(gradients[0]);
                           if (dhidden_LD.defined()) dhidden_LD.mul_(gradients[0]);
                           return std::vector<at::Tensor>{std::move(dhidden_LD)};
                         })[0];
}

}  // namespace longspan
