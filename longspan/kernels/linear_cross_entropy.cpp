#include "longspan/kernels/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

/// Returns d capped logits / d logits for logits of a head with a softcap: 1 - tanh^2.
at::Tensor softcap_slope(const at::Tensor& logits_CV, const HeadInput& head) {
  const at::Tensor tanh_CV = logits_CV * (head.temperature / *head.softcap);
  return tanh_CV.square_().neg_().add_(1.0);
}

/// For one chunk: turns logits into d loss / d logits, and calls add_head_gradients(). In bf16 the
/// scale must come after the product: gradients at labels are all near -1, and scaled ones would
/// round alike.
void head_backward(at::Tensor& logits_CV, const at::Tensor& labels_C, const at::Tensor& lse_C,
                   const at::Tensor& scale_C, const at::Tensor& hidden_CD, const HeadInput& head,
                   at::Tensor dhidden_CD, const at::Tensor& dweight_VD,
                   double dweight_scale = 1.0) {
  const at::Tensor slope_CV = head.softcap ? softcap_slope(logits_CV, head) : at::Tensor();
  auto dlogits_CV =
      cross_entropy_gradient(logits_CV, labels_C, lse_C, scale_C, hidden_CD.scalar_type());
  if (head.softcap) dlogits_CV.mul_(slope_CV);
  add_head_gradients(dlogits_CV, hidden_CD, head.weight_VD, dhidden_CD, dweight_VD, dweight_scale);
}

/// Returns the entropies of rows of logits, [C] fp64.
at::Tensor entropy_rows(const at::Tensor& logits_CV, const at::Tensor& lse_C) {
  const at::Tensor logprobs_CV = logits_CV.to(at::kDouble) - lse_C.unsqueeze(1);
  return logprobs_CV.exp().mul_(logprobs_CV).sum(1).neg();
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
  return linear_token_scores(hidden_LD, weight_VD, labels_L, {}, chunk_bytes).logprobs_L;
}

TokenScores linear_token_scores(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                                const at::Tensor& labels_L, const TokenScoreOptions& options,
                                ChunkBytes chunk_bytes) {
  const int64_t L = hidden_LD.size(0);
  const auto fp64 = hidden_LD.options().dtype(at::kDouble);
  at::Tensor lse_L;
  TokenScores scores;
  {
    c10::NoGradGuard no_grad;
    lse_L = at::empty({L}, fp64);
    auto picked_L = at::empty({L}, fp64);
    if (options.entropies) scores.entropies_L = at::empty({L}, fp64);
    const HeadChunks chunks({{hidden_LD, weight_VD, options.temperature, options.softcap}},
                            chunk_bytes);
    chunks.for_each([&](int64_t begin, int64_t size, std::vector<at::Tensor>& logits) {
      const at::Tensor& logits_CV = logits[0];
      const auto lse_C = lse_L.narrow(0, begin, size);
      log_sum_exp_rows(logits_CV, labels_L.narrow(0, begin, size), lse_C,
                       picked_L.narrow(0, begin, size));
      if (!options.entropies) return;
      chunks.for_parts(size, [&](int64_t first, int64_t count) {
        scores.entropies_L.narrow(0, begin + first, count)
            .copy_(entropy_rows(logits_CV.narrow(0, first, count), lse_C.narrow(0, first, count)));
      });
    });
    scores.logprobs_L = picked_L - lse_L;
    scores.lse_L = lse_L;
  }
  if (!needs_backward({hidden_LD}, {weight_VD})) return scores;
  scores.logprobs_L = attach_backward(
      {scores.logprobs_L}, {hidden_LD}, {weight_VD},
      [hidden_LD = hidden_LD.detach(), weight_VD, labels_L, lse_L, options,
       chunk_bytes](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
        return {linear_token_scores_backward(gradients[0], hidden_LD, weight_VD, labels_L, lse_L,
                                             options, chunk_bytes)};
      })[0];
  return scores;
}

at::Tensor linear_token_scores_backward(const at::Tensor& dlogprobs_L, const at::Tensor& hidden_LD,
                                        const at::Tensor& weight_VD, const at::Tensor& labels_L,
                                        const at::Tensor& lse_L, const TokenScoreOptions& options,
                                        ChunkBytes chunk_bytes) {
  c10::NoGradGuard no_grad;
  // d(picked - lse) / d logits is onehot - softmax.
  auto scale_L = dlogprobs_L.neg().to(arithmetic_dtype(hidden_LD.scalar_type())).contiguous();
  if (options.temperature != 1.0) scale_L.div_(options.temperature);
  auto dhidden_LD = at::empty_like(hidden_LD);
  const HeadChunks chunks({{hidden_LD, weight_VD, options.temperature, options.softcap}},
                          chunk_bytes);
  PreciseSums sums({weight_VD}, chunks.num_chunks());
  const auto dweight_VD = weight_VD.requires_grad() ? gradient_of(weight_VD) : at::Tensor();
  chunks.for_each([&](int64_t begin, int64_t size, std::vector<at::Tensor>& logits) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, size); };
    head_backward(logits[0], part(labels_L), part(lse_L), part(scale_L), part(hidden_LD),
                  chunks.head(), part(dhidden_LD), dweight_VD);
  });
  sums.finish();
  return dhidden_LD;
}

at::Tensor linear_nll_sum(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                          const at::Tensor& labels_L, ChunkBytes chunk_bytes,
                          const HeadGradient& known, const LossFactors& factors) {
  const bool trains = needs_backward({hidden_LD}, {weight_VD});
  if (!trains && !factors) {
    return linear_token_logprobs(hidden_LD, weight_VD, labels_L, chunk_bytes).sum().neg();
  }
  const int64_t L = hidden_LD.size(0);
  const auto options = hidden_LD.options().dtype(at::kDouble);
  at::Tensor nll, dhidden_LD;
  std::optional<WeightGradient> sum;
  {
    c10::NoGradGuard no_grad;
    const HeadChunks chunks({{hidden_LD, weight_VD}}, chunk_bytes);
    if (trains) sum.emplace(weight_VD, chunks.num_chunks(), known);
    const at::Tensor& hidden = chunks.head().hidden_LD;
    const auto lse_L = at::empty({L}, options), picked_L = at::empty({L}, options);
    const auto scale_L = at::ones({L}, options.dtype(arithmetic_dtype(hidden.scalar_type())));
    if (trains && hidden_LD.requires_grad()) dhidden_LD = at::empty_like(hidden);
    chunks.for_each([&](int64_t begin, int64_t size, std::vector<at::Tensor>& logits) {
      const auto part = [&](const at::Tensor& x) {
        return x.defined() ? x.narrow(0, begin, size) : x;
      };
      log_sum_exp_rows(logits[0], part(labels_L), part(lse_L), part(picked_L));
      if (factors) {
        const at::Tensor nll_C = part(lse_L) - part(picked_L);
        part(scale_L).copy_(factors({logits[0], part(labels_L), nll_C}));
      }
      if (!trains) return;
      head_backward(logits[0], part(labels_L), part(lse_L), part(scale_L), part(hidden),
                    chunks.head(), part(dhidden_LD), sum->sum(), sum->scale());
    });
    if (trains) sum->end_forward();
    const at::Tensor nll_L = lse_L - picked_L;
    nll = (factors ? nll_L * scale_L : nll_L).sum();
  }
  if (!trains) return nll;
  return attach_backward(
      {nll}, {hidden_LD}, {weight_VD},
      [dhidden_LD, dweight = std::move(*sum)](std::vector<at::Tensor> gradients) mutable {
        c10::NoGradGuard no_grad;
        dweight.end_backward(gradients[0]);
        if (dhidden_LD.defined()) dhidden_LD.mul_(gradients[0]);
        return std::vector<at::Tensor>{std::move(dhidden_LD)};
      })[0];
}

}  // namespace longspan
