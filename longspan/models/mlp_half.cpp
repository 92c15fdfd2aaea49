#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "longspan/models/decoder_block.h"
#include "longspan/models/fused_op.h"
#include "longspan/models/product.h"
#include "longspan/models/row_kernels.h"

namespace longspan {
namespace {

/// Rows worked on at a time: enough for matrix products at full speed, few enough that what lives
/// only inside the MLP is small beside the row. A row is never cut below this.
constexpr int64_t kMinChunkRows = 1024;
constexpr int64_t kChunkBytes = int64_t{8} << 20;  // of one [rows, I] tensor

int64_t chunk_rows(int64_t intermediate_size, at::ScalarType dtype) {
  return std::max(kMinChunkRows, kChunkBytes / (intermediate_size *
                                                static_cast<int64_t>(c10::elementSize(dtype))));
}

/// Forward over chunks. gate and up are kept where defined.
at::Tensor forward(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& gate_TI,
                   const at::Tensor& up_TI, const BlockWeights& weights, const RowContext& row) {
  const auto dtype = row.compute_dtype;
  const Linear gate_proj = weights.gate_proj.cast(dtype), up_proj = weights.up_proj.cast(dtype),
               down_proj = weights.down_proj.cast(dtype);
  const int64_t T = h_TD.size(0), I = gate_proj.weight.size(0);
  const int64_t chunk = chunk_rows(I, dtype);
  const auto options = h_TD.options().dtype(dtype);
  const bool keep = gate_TI.defined();
  const auto work_TI = at::empty({std::min(chunk, T), I}, options);
  const auto work_up_TI = keep ? at::Tensor() : at::empty_like(work_TI);
  auto out_TD = at::empty_like(h_TD);
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const int64_t size = std::min(chunk, T - begin);
    const auto h = h_TD.narrow(0, begin, size);
    auto act = work_TI.narrow(0, 0, size);
    auto gate = keep ? gate_TI.narrow(0, begin, size) : act;
    auto up = keep ? up_TI.narrow(0, begin, size) : work_up_TI.narrow(0, 0, size);
    {
      const auto x =
          scale_rows(h, rstd_T.narrow(0, begin, size), weights.post_attention_norm, dtype);
      gate_proj.for_rows(begin, size).forward_out(gate, x);
      up_proj.for_rows(begin, size).forward_out(up, x);
    }
    swiglu_out(act, gate, up);
    const Linear down = down_proj.for_rows(begin, size);
    auto out = out_TD.narrow(0, begin, size);
    if (h.scalar_type() == dtype) {
      down.add_forward_(out.copy_(h), act);
    } else {
      at::add_out(out, h, down.forward(act));
    }
  }
  return out_TD;
}

}  // namespace

std::vector<at::Tensor> BlockWeights::mlp_parameters() const {
  std::vector<at::Tensor> parameters{post_attention_norm};
  for (const Linear* layer : {&gate_proj, &up_proj, &down_proj}) {
    for (const at::Tensor& parameter : layer->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

at::Tensor mlp_half(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row) {
  const bool differentiable = needs_backward({h_TD}, weights.mlp_parameters());
  at::Tensor gate_TI, up_TI, out_TD;
  {
    c10::NoGradGuard no_grad;
    if (differentiable) {
      const auto options = h_TD.options().dtype(row.compute_dtype);
      gate_TI = at::empty({h_TD.size(0), weights.gate_proj.weight.size(0)}, options);
      up_TI = at::empty_like(gate_TI);
    }
    out_TD = forward(h_TD, reciprocal_rms(h_TD, row.eps), gate_TI, up_TI, weights, row);
  }
  if (!differentiable) return out_TD;
  return attach_backward(
      {out_TD}, {h_TD}, weights.mlp_parameters(),
      [h_TD = h_TD.detach(), gate_TI, up_TI, weights,
       row](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
        return {mlp_half_backward(gradients[0], h_TD, gate_TI, up_TI, weights, row)};
      })[0];
}

at::Tensor mlp_half_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD, at::Tensor gate_TI,
                             at::Tensor up_TI, const BlockWeights& weights, const RowContext& row) {
  c10::NoGradGuard no_grad;
  const auto dtype = row.compute_dtype;
  const Linear gate_proj = weights.gate_proj.cast(dtype), up_proj = weights.up_proj.cast(dtype),
               down_proj = weights.down_proj.cast(dtype);
  const int64_t T = h_TD.size(0), I = gate_proj.weight.size(0);
  const int64_t chunk = chunk_rows(I, dtype);
  const bool kept = gate_TI.defined();
  const auto work_TI =
      at::empty({kept ? 1 : 3, std::min(chunk, T), I}, h_TD.options().dtype(dtype));
  const at::Tensor& norm = weights.post_attention_norm;
  const auto rstd_T = reciprocal_rms(h_TD, row.eps);
  const auto dnorm_D =
      norm.requires_grad() ? at::zeros(norm.sizes(), rstd_T.options()) : at::Tensor();
  auto dh_TD = at::empty_like(h_TD);
  // No labels, no rows: every parameter still gets its gradient, of zeros.
  for (int64_t begin = 0; begin < std::max<int64_t>(T, 1); begin += chunk) {
    const int64_t size = std::min(chunk, T - begin);
    const auto h = h_TD.narrow(0, begin, size), rstd = rstd_T.narrow(0, begin, size);
    const auto residual = dout_TD.narrow(0, begin, size);
    const auto dout = residual.to(dtype);
    const auto x = scale_rows(h, rstd, norm, dtype);
    auto dact = work_TI[0].narrow(0, 0, size);
    auto gate = kept ? gate_TI.narrow(0, begin, size) : work_TI[1].narrow(0, 0, size);
    auto up = kept ? up_TI.narrow(0, begin, size) : work_TI[2].narrow(0, 0, size);
    if (!kept) {
      gate_proj.for_rows(begin, size).forward_out(gate, x);
      up_proj.for_rows(begin, size).forward_out(up, x);
    }
    down_proj.for_rows(begin, size).input_gradient_out(dact, dout);
    swiglu_backward_(gate, up, dact);
    const auto &dgate = gate, &dup = up, &act = dact;
    weights.down_proj.for_rows(begin, size).add_gradients(dout, act);
    weights.gate_proj.for_rows(begin, size).add_gradients(dgate, x);
    weights.up_proj.for_rows(begin, size).add_gradients(dup, x);
    auto dx = gate_proj.for_rows(begin, size).input_gradient(dgate);
    up_proj.for_rows(begin, size).add_input_gradient(dx, dup);
    dh_TD.narrow(0, begin, size).copy_(norm_backward(dx, h, rstd, norm, residual, dnorm_D));
  }
  if (dnorm_D.defined()) add_gradient(norm, dnorm_D);
  return dh_TD;
}

}  // namespace longspan
