#include "longspan/attention/sinks.h"

#include <ATen/ATen.h>

#include <stdexcept>

namespace longspan {

AttentionResult with_sinks(AttentionResult result, const at::Tensor& sinks_N,
                           const AttentionSpec& spec) {
  if (spec.has_sinks != sinks_N.defined()) {
    throw std::logic_error(spec.has_sinks ? "attention with sinks was given none"
                                          : "attention without sinks was given some");
  }
  if (!sinks_N.defined()) return result;
  TORCH_CHECK(sinks_N.dim() == 1 && sinks_N.size(0) == result.lse_NT.size(0),
              "attention: ", sinks_N.sizes(), " sinks for ", result.lse_NT.size(0), " query heads");
  const at::Tensor sinks_N1 = sinks_N.detach().to(result.lse_NT.scalar_type()).unsqueeze(1);
  const at::Tensor share_NT = at::sigmoid(result.lse_NT - sinks_N1);
  return {
      (result.out_TNH * share_NT.transpose(0, 1).unsqueeze(-1)).to(result.out_TNH.scalar_type()),
      at::logaddexp(result.lse_NT, sinks_N1)};
}

at::Tensor sink_gradient(const at::Tensor& dout_TNH, const AttentionResult& result,
                         const at::Tensor& sinks_N) {
  if (!sinks_N.defined()) return {};
  const at::ScalarType wide = result.lse_NT.scalar_type();
  const at::Tensor delta_TN = (dout_TNH.to(wide) * result.out_TNH.to(wide)).sum(-1);
  const at::Tensor weight_NT = (sinks_N.detach().to(wide).unsqueeze(1) - result.lse_NT).exp();
  return (weight_NT * delta_TN.transpose(0, 1)).sum(-1).neg().to(sinks_N.scalar_type());
}

}  // namespace longspan
