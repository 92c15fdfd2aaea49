#include "longspan/kernels/composed_rows.h"

#include <ATen/ATen.h>

#include "longspan/kernels/storage_type.h"

namespace longspan::composed {
namespace {

at::Tensor precise(const at::Tensor& x) { return x.to(arithmetic_dtype(x.scalar_type())); }

}  // namespace

at::Tensor reciprocal_rms(const at::Tensor& h_TD, double eps) {
  return precise(h_TD).square().mean(-1).add(eps).rsqrt();
}

at::Tensor scale_rows(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& weight_D,
                      at::ScalarType dtype) {
  return (precise(h_TD) * rstd_T.unsqueeze(1) * precise(weight_D)).to(dtype);
}

at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& h_TD, const at::Tensor& rstd_T,
                         const at::Tensor& weight_D, const at::Tensor& residual_TD,
                         const at::Tensor& dweight_D) {
  const auto normal_TD = precise(h_TD) * rstd_T.unsqueeze(1);
  const auto dy = precise(dy_TD);
  if (dweight_D.defined()) dweight_D.add_((dy * normal_TD).sum(0));
  const auto scaled_TD = dy * precise(weight_D);
  const auto mean_T1 = (scaled_TD * normal_TD).mean(-1, /*keepdim=*/true);
  auto dh_TD = (scaled_TD - normal_TD * mean_T1) * rstd_T.unsqueeze(1);
  if (residual_TD.defined()) dh_TD.add_(residual_TD);
  return dh_TD.to(h_TD.scalar_type());
}

namespace {

bool are_neighbours(RotaryPairs pairs) {
  switch (pairs) {
    case RotaryPairs::kHalves:
      return false;
    case RotaryPairs::kNeighbours:
      return true;
  }
  TORCH_CHECK(false, "no such pairs of a rotation");
}

}  // namespace

at::Tensor rotate(const at::Tensor& x_TNH, const RotaryTable& table, bool inverse) {
  const int64_t F = table.cos_TF.size(1), rest = x_TNH.size(2) - 2 * F;
  const auto x = precise(x_TNH);
  const bool neighbours = are_neighbours(table.pairs);
  const auto turned_TNJ = x.narrow(2, 0, 2 * F);
  const auto pairs = neighbours ? turned_TNJ.unflatten(2, {F, 2}) : turned_TNJ.unflatten(2, {2, F});
  const int64_t dim = neighbours ? 3 : 2;
  const auto low = pairs.select(dim, 0), high = pairs.select(dim, 1);
  const auto cos = table.cos_TF.unsqueeze(1);
  const auto sin = inverse ? -table.sin_TF.unsqueeze(1) : table.sin_TF.unsqueeze(1);
  const auto turned = at::stack({low * cos - high * sin, high * cos + low * sin}, dim).flatten(2);
  return at::cat({turned, x.narrow(2, 2 * F, rest)}, -1).to(x_TNH.scalar_type());
}

at::Tensor swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  return (at::silu(precise(gate_TI)) * precise(up_TI)).to(gate_TI.scalar_type());
}

void swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI) {
  const auto gate = precise(gate_TI), up = precise(up_TI), dact = precise(dact_TI);
  const auto silu = at::silu(gate);
  const auto dgate = at::silu_backward(dact * up, gate);
  const auto dup = dact * silu;
  dact_TI.copy_(silu * up);
  gate_TI.copy_(dgate);
  up_TI.copy_(dup);
}

at::Tensor geglu(const at::Tensor& gate_TI, const at::Tensor& up_TI) {
  return (at::gelu(precise(gate_TI), "tanh") * precise(up_TI)).to(gate_TI.scalar_type());
}

void geglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI) {
  const auto gate = precise(gate_TI), up = precise(up_TI), dact = precise(dact_TI);
  const auto gelu = at::gelu(gate, "tanh");
  const auto dgate = at::gelu_backward(dact * up, gate, "tanh");
  const auto dup = dact * gelu;
  dact_TI.copy_(gelu * up);
  gate_TI.copy_(dgate);
  up_TI.copy_(dup);
}

at::Tensor clamped_swiglu(const at::Tensor& gate_TI, const at::Tensor& up_TI, double slope,
                          double limit) {
  const auto gate = precise(gate_TI).clamp_max(limit), up = precise(up_TI).clamp(-limit, limit);
  return (gate * at::sigmoid(gate * slope) * (up + 1)).to(gate_TI.scalar_type());
}

void clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit) {
  const auto dact = precise(dact_TI);
  const auto gate = precise(gate_TI).clamp_max(limit), up = precise(up_TI).clamp(-limit, limit);
  const auto open = at::sigmoid(gate * slope), glu = gate * open;
  const auto dgate = dact * (up + 1) * (open + slope * glu * (1 - open));
  const auto dup = dact * glu;
  dact_TI.copy_(glu * (up + 1));
  gate_TI.copy_(dgate * precise(gate_TI).le(limit));
  up_TI.copy_(dup * precise(up_TI).abs().le(limit));
}

void log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor lse_T,
                      at::Tensor picked_T) {
  const auto largest_T1 = logits_TV.amax({1}, /*keepdim=*/true);
  const auto sums_T = at::sum(at::exp(logits_TV - largest_T1), {1}, false, at::kDouble);
  lse_T.copy_(largest_T1.squeeze(1) + sums_T.log());
  picked_T.copy_(logits_TV.gather(1, labels_T.unsqueeze(1)).squeeze(1));
}

void cross_entropy_gradient_(at::Tensor& logits_TV, const at::Tensor& labels_T,
                             const at::Tensor& lse_T, const at::Tensor& scale_T) {
  // The factor corrects the rounding of the log-sum-exp.
  const auto rounded_T = lse_T.to(logits_TV.scalar_type());
  const auto factor_T = (scale_T * at::exp(rounded_T - lse_T)).to(logits_TV.scalar_type());
  logits_TV.sub_(rounded_T.unsqueeze(1)).exp_().mul_(factor_T.unsqueeze(1));
  logits_TV.scatter_add_(1, labels_T.unsqueeze(1), -scale_T.unsqueeze(1));
}

}  // namespace longspan::composed
