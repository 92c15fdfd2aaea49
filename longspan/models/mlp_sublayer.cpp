#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "longspan/models/decoder_block.h"
#include "longspan/models/fused_op.h"
#include "longspan/models/fused_rows.h"
#include "longspan/models/gemm.h"

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

at::Tensor zeros_for_norm(const at::Tensor& norm_D, const at::TensorOptions& like) {
  const bool wide = c10::typeMetaToScalarType(like.dtype()) == at::kDouble;
  return norm_D.requires_grad()
             ? at::zeros(norm_D.sizes(), like.dtype(wide ? at::kDouble : at::kFloat))
             : at::Tensor();
}

/// Forward over chunks. gate and up are saved where defined.
at::Tensor forward(const at::Tensor& h_TD, const at::Tensor& rstd_T, const at::Tensor& gate_TI,
                   const at::Tensor& up_TI, const BlockWeights& weights, const RowContext& row) {
  const auto dtype = row.compute_dtype;
  const Linear gate_proj = weights.gate_proj.cast(dtype), up_proj = weights.up_proj.cast(dtype),
               down_proj = weights.down_proj.cast(dtype);
  const int64_t T = h_TD.size(0), I = gate_proj.weight.size(0);
  const int64_t chunk = mlp_chunk_rows(T, weights, row);
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

int64_t mlp_chunk_rows(int64_t num_rows, const BlockWeights& weights, const RowContext& row) {
  if (row.mlp_tiles == 0) return chunk_rows(weights.gate_proj.weight.size(0), row.compute_dtype);
  return std::max<int64_t>(1, (num_rows + row.mlp_tiles - 1) / row.mlp_tiles);
}

int64_t mlp_num_chunks(int64_t num_rows, const BlockWeights& weights, const RowContext& row) {
  const int64_t rows = mlp_chunk_rows(num_rows, weights, row);
  return (num_rows + rows - 1) / rows;
}

at::Tensor mlp_sublayer(const at::Tensor& h_TD, const BlockWeights& weights,
                        const RowContext& row) {
  const bool differentiable = needs_backward({h_TD}, weights.mlp_parameters());
  at::Tensor gate_TI, up_TI, out_TD;
  {
    c10::NoGradGuard no_grad;
    if (differentiable && row.mlp_tiles == 0) {
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
        return {mlp_sublayer_backward(gradients[0], h_TD, gate_TI, up_TI, weights, row)};
      })[0];
}

MlpBackward::MlpBackward(const at::TensorOptions& residual, int64_t num_rows, bool recomputes,
                         const BlockWeights& weights, const RowContext& row)
    : weights_(weights),
      row_(row),
      gate_proj_(weights.gate_proj.cast(row.compute_dtype)),
      up_proj_(weights.up_proj.cast(row.compute_dtype)),
      down_proj_(weights.down_proj.cast(row.compute_dtype)),
      dnorm_D_(zeros_for_norm(weights.post_attention_norm, residual)),
      sums_(weights.mlp_parameters(), mlp_num_chunks(num_rows, weights, row)) {
  const int64_t rows = std::min(mlp_chunk_rows(num_rows, weights, row), num_rows);
  work_CI_ = at::empty({recomputes ? 3 : 1, rows, gate_proj_.weight.size(0)},
                       residual.dtype(row.compute_dtype));
}

void MlpBackward::chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD) {
  const int64_t size = h_CD.size(0);
  const auto rstd_C = reciprocal_rms(h_CD, row_.eps);
  const auto x = scale_rows(h_CD, rstd_C, weights_.post_attention_norm, row_.compute_dtype);
  auto gate = work_CI_[1].narrow(0, 0, size), up = work_CI_[2].narrow(0, 0, size);
  gate_proj_.for_rows(begin, size).forward_out(gate, x);
  up_proj_.for_rows(begin, size).forward_out(up, x);
  chunk(begin, h_CD, rstd_C, x, gate, up, dout_CD, dout_CD);
}

void MlpBackward::chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD,
                        const at::Tensor& gate_CI, const at::Tensor& up_CI,
                        const at::Tensor& dh_CD) {
  const auto rstd_C = reciprocal_rms(h_CD, row_.eps);
  const auto x = scale_rows(h_CD, rstd_C, weights_.post_attention_norm, row_.compute_dtype);
  chunk(begin, h_CD, rstd_C, x, gate_CI, up_CI, dout_CD, dh_CD);
}

void MlpBackward::chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& rstd_C,
                        const at::Tensor& x_CD, at::Tensor gate_CI, at::Tensor up_CI,
                        const at::Tensor& dout_CD, const at::Tensor& dh_CD) {
  const int64_t size = h_CD.size(0);
  const auto dout = dout_CD.to(row_.compute_dtype);
  auto dact = work_CI_[0].narrow(0, 0, size);
  down_proj_.for_rows(begin, size).input_gradient_out(dact, dout);
  swiglu_backward_(gate_CI, up_CI, dact);
  const auto &dgate = gate_CI, &dup = up_CI, &act = dact;
  weights_.down_proj.for_rows(begin, size).add_gradients(dout, act);
  weights_.gate_proj.for_rows(begin, size).add_gradients(dgate, x_CD);
  weights_.up_proj.for_rows(begin, size).add_gradients(dup, x_CD);
  auto dx = gate_proj_.for_rows(begin, size).input_gradient(dgate);
  up_proj_.for_rows(begin, size).add_input_gradient(dx, dup);
  dh_CD.copy_(norm_backward(dx, h_CD, rstd_C, weights_.post_attention_norm, dout_CD, dnorm_D_));
}

void MlpBackward::finish() {
  if (dnorm_D_.defined()) add_gradient(weights_.post_attention_norm, dnorm_D_);
  sums_.finish();
}

at::Tensor mlp_sublayer_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD,
                                 at::Tensor gate_TI, at::Tensor up_TI, const BlockWeights& weights,
                                 const RowContext& row) {
  c10::NoGradGuard no_grad;
  const int64_t T = h_TD.size(0), chunk = mlp_chunk_rows(T, weights, row);
  MlpBackward backward(h_TD.options(), T, /*recomputes=*/!gate_TI.defined(), weights, row);
  auto dh_TD = at::empty_like(h_TD);
  // No labels, no rows: every parameter still gets its gradient, of zeros.
  for (int64_t begin = 0; begin < std::max<int64_t>(T, 1); begin += chunk) {
    const int64_t size = std::min(chunk, T - begin);
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, begin, size); };
    if (gate_TI.defined()) {
      backward.chunk(begin, rows(h_TD), rows(dout_TD), rows(gate_TI), rows(up_TI), rows(dh_TD));
    } else {
      backward.chunk(begin, rows(h_TD), rows(dh_TD).copy_(rows(dout_TD)));
    }
  }
  backward.finish();
  return dh_TD;
}

}  // namespace longspan
