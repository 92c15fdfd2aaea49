#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "longspan/models/chunked_projections.h"
#include "longspan/models/decoder_block.h"
#include "longspan/models/fused_op.h"
#include "longspan/models/fused_rows.h"
#include "longspan/models/gemm.h"
#include "longspan/models/head_norm.h"

namespace longspan {
namespace {

/// Zeros to collect a norm weight's gradient in full precision; undefined where it is frozen.
at::Tensor norm_weight_gradient(const at::Tensor& weight_D, const at::Tensor& rstd_T) {
  return weight_D.requires_grad() ? at::zeros(weight_D.sizes(), rstd_T.options()) : at::Tensor();
}

/// Rows worked on at a time, as in the MLP: what lives only inside of a chunk is small.
int64_t chunk_rows(const RowContext& row, const at::Tensor& h_TD) {
  constexpr int64_t kMinChunkRows = 1024, kChunkBytes = int64_t{2} << 20;
  const int64_t width = std::max(h_TD.size(1), row.num_heads * row.head_dim);
  return std::max(
      kMinChunkRows,
      kChunkBytes / (width * static_cast<int64_t>(c10::elementSize(row.compute_dtype))));
}

RotaryTable rows_of(const RotaryTable& table, int64_t begin, int64_t size) {
  return {table.cos_TF.narrow(0, begin, size), table.sin_TF.narrow(0, begin, size)};
}

/// As project_heads(), with a graph: norm, three projections and rotation in one operation that
/// keeps h and one number a row.
Heads differentiable_heads(const at::Tensor& h_TD, const BlockWeights& weights,
                           const RowContext& row) {
  const int64_t T = h_TD.size(0), H = row.head_dim;
  at::Tensor rstd_T;
  std::vector<at::Tensor> heads;
  HeadNorm q_norm(weights.q_norm, row.eps), k_norm(weights.k_norm, row.eps);
  {
    c10::NoGradGuard no_grad;
    rstd_T = reciprocal_rms(h_TD, row.eps);
    const auto x_TD = scale_rows(h_TD, rstd_T, weights.input_norm, row.compute_dtype);
    auto q_TNH = q_norm.forward(weights.q_proj.forward(x_TD).view({T, row.num_heads, H}));
    auto k_TMH = k_norm.forward(weights.k_proj.forward(x_TD).view({T, row.num_kv_heads, H}));
    rotate_(q_TNH, row.rotary, /*inverse=*/false);
    rotate_(k_TMH, row.rotary, /*inverse=*/false);
    heads = {q_TNH, k_TMH, weights.v_proj.forward(x_TD).view({T, row.num_kv_heads, H})};
  }
  heads = attach_backward(
      heads, {h_TD}, weights.attention_parameters(),
      [h_TD = h_TD.detach(), rstd_T, weights, q_norm, k_norm, rotary = row.rotary,
       dtype = row.compute_dtype,
       wants_input = h_TD.requires_grad()](std::vector<at::Tensor> gradients) mutable {
        const auto x_TD = scale_rows(h_TD, rstd_T, weights.input_norm, dtype);
        const auto dq = q_norm.backward(rotate(gradients[0], rotary, /*inverse=*/true)).flatten(1);
        gradients[0].reset();
        const auto dk = k_norm.backward(rotate(gradients[1], rotary, /*inverse=*/true)).flatten(1);
        gradients[1].reset();
        const auto dv = gradients[2].flatten(1);
        weights.q_proj.add_gradients(dq, x_TD);
        weights.k_proj.add_gradients(dk, x_TD);
        weights.v_proj.add_gradients(dv, x_TD);
        if (!wants_input && !weights.input_norm.requires_grad()) {
          return std::vector<at::Tensor>{};
        }
        auto dx_TD = weights.q_proj.input_gradient(dq);
        weights.k_proj.add_input_gradient(dx_TD, dk);
        weights.v_proj.add_input_gradient(dx_TD, dv);
        const auto dweight_D = norm_weight_gradient(weights.input_norm, rstd_T);
        auto dh_TD = norm_backward(dx_TD, h_TD, rstd_T, weights.input_norm, {}, dweight_D);
        if (dweight_D.defined()) add_gradient(weights.input_norm, dweight_D);
        return wants_input ? std::vector<at::Tensor>{dh_TD} : std::vector<at::Tensor>{};
      });
  return {heads[0], heads[1], heads[2]};
}

}  // namespace

Heads project_heads(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row) {
  c10::NoGradGuard no_grad;
  const int64_t T = h_TD.size(0), H = row.head_dim, chunk = chunk_rows(row, h_TD);
  const auto options = h_TD.options().dtype(row.compute_dtype).requires_grad(false);
  const Linear q_proj = weights.q_proj.cast(row.compute_dtype),
               k_proj = weights.k_proj.cast(row.compute_dtype),
               v_proj = weights.v_proj.cast(row.compute_dtype);
  Heads heads{at::empty({T, row.num_heads, H}, options),
              at::empty({T, row.num_kv_heads, H}, options),
              at::empty({T, row.num_kv_heads, H}, options)};
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const int64_t size = std::min(chunk, T - begin);
    const auto h = h_TD.narrow(0, begin, size);
    const auto x = scale_rows(h, reciprocal_rms(h, row.eps), weights.input_norm, row.compute_dtype);
    const RotaryTable rotary = rows_of(row.rotary, begin, size);
    const auto project = [&](const Linear& proj, at::Tensor& all, const at::Tensor& norm_H,
                             bool rotated) {
      auto part = all.narrow(0, begin, size);
      proj.for_rows(begin, size).forward_out(part.flatten(1), x);
      if (norm_H.defined()) part.copy_(HeadNorm(norm_H, row.eps).forward(part));
      if (rotated) rotate_(part, rotary, /*inverse=*/false);
    };
    project(q_proj, heads.q_TNH, weights.q_norm, true);
    project(k_proj, heads.k_TMH, weights.k_norm, true);
    project(v_proj, heads.v_TMH, {}, false);
  }
  return heads;
}

void project_heads_backward(const Heads& gradients, const at::Tensor& h_TD, at::Tensor dh_TD,
                            bool wants_input, const BlockWeights& weights, const RowContext& row) {
  c10::NoGradGuard no_grad;
  const int64_t T = h_TD.size(0), H = row.head_dim, chunk = chunk_rows(row, h_TD);
  const auto dtype = row.compute_dtype;
  const Linear q_proj = weights.q_proj.cast(dtype), k_proj = weights.k_proj.cast(dtype),
               v_proj = weights.v_proj.cast(dtype);
  at::Tensor dnorm_D;
  std::vector<at::Tensor> in_chunks{weights.q_norm, weights.k_norm};
  for (const Linear* layer : {&weights.q_proj, &weights.k_proj, &weights.v_proj}) {
    for (const at::Tensor& parameter : layer->parameters()) in_chunks.push_back(parameter);
  }
  PreciseSums sums(in_chunks, (T + chunk - 1) / chunk);
  // No tokens: every parameter still gets its gradient, of zeros.
  for (int64_t begin = 0; begin < std::max<int64_t>(T, 1); begin += chunk) {
    const int64_t size = std::min(chunk, T - begin);
    const auto h = h_TD.narrow(0, begin, size);
    const auto rstd_C = reciprocal_rms(h, row.eps);
    if (!dnorm_D.defined()) dnorm_D = norm_weight_gradient(weights.input_norm, rstd_C);
    const auto x = scale_rows(h, rstd_C, weights.input_norm, dtype);
    const RotaryTable rotary = rows_of(row.rotary, begin, size);
    const auto through_head = [&](const at::Tensor& all, const Linear& proj,
                                  const at::Tensor& norm_H) {
      auto dy = rotate(all.narrow(0, begin, size), rotary, /*inverse=*/true);
      if (norm_H.defined()) {
        HeadNorm norm(norm_H, row.eps);
        norm.forward(proj.for_rows(begin, size).forward(x).view({size, -1, H}));
        dy = norm.backward(dy);
      }
      return dy.flatten(1);
    };
    const auto dq = through_head(gradients.q_TNH, q_proj, weights.q_norm);
    const auto dk = through_head(gradients.k_TMH, k_proj, weights.k_norm);
    const auto dv = gradients.v_TMH.narrow(0, begin, size).flatten(1);
    weights.q_proj.for_rows(begin, size).add_gradients(dq, x);
    weights.k_proj.for_rows(begin, size).add_gradients(dk, x);
    weights.v_proj.for_rows(begin, size).add_gradients(dv, x);
    if (!wants_input && !weights.input_norm.requires_grad()) continue;
    auto dx = q_proj.for_rows(begin, size).input_gradient(dq);
    k_proj.for_rows(begin, size).add_input_gradient(dx, dk);
    v_proj.for_rows(begin, size).add_input_gradient(dx, dv);
    auto dh = dh_TD.narrow(0, begin, size);
    dh.copy_(norm_backward(dx, h, rstd_C, weights.input_norm, dh, dnorm_D));
  }
  sums.finish();
  if (dnorm_D.defined()) add_gradient(weights.input_norm, dnorm_D);
}

// Keeps out, which the attention keeps too.
at::Tensor project_output(const at::Tensor& h_LD, const at::Tensor& out_LNH, const Linear& o_proj,
                          const RowContext& row) {
  at::Tensor sum_LD;
  {
    c10::NoGradGuard no_grad;
    const auto out = out_LNH.flatten(1);
    if (h_LD.scalar_type() == row.compute_dtype) {
      sum_LD = h_LD.clone();
      o_proj.add_forward_(sum_LD, out);
    } else {
      sum_LD = h_LD + o_proj.forward(out);
    }
  }
  if (needs_backward({h_LD, out_LNH}, o_proj.parameters())) {
    sum_LD = attach_backward({sum_LD}, {h_LD, out_LNH}, o_proj.parameters(),
                             [out_LNH = out_LNH.detach(), o_proj, dtype = row.compute_dtype,
                              wants_out = out_LNH.requires_grad()](
                                 std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
                               const auto dsum = gradients[0].to(dtype);
                               o_proj.add_gradients(dsum, out_LNH.flatten(1));
                               at::Tensor dout;
                               if (wants_out) {
                                 dout = o_proj.input_gradient(dsum).view(out_LNH.sizes());
                               }
                               return {gradients[0], dout};
                             })[0];
  }
  return sum_LD;
}

std::vector<at::Tensor> BlockWeights::attention_parameters() const {
  std::vector<at::Tensor> parameters{input_norm, q_norm, k_norm};
  for (const Linear* layer : {&q_proj, &k_proj, &v_proj, &o_proj}) {
    for (const at::Tensor& parameter : layer->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

at::Tensor rms_norm(const at::Tensor& h_TD, const at::Tensor& weight_D, double eps,
                    at::ScalarType dtype) {
  at::Tensor rstd_T, y_TD;
  {
    c10::NoGradGuard no_grad;
    rstd_T = reciprocal_rms(h_TD, eps);
    y_TD = scale_rows(h_TD, rstd_T, weight_D, dtype);
  }
  if (needs_backward({h_TD}, {weight_D})) {
    y_TD = attach_backward(
        {y_TD}, {h_TD}, {weight_D},
        [h_TD = h_TD.detach(), rstd_T, weight_D](std::vector<at::Tensor> gradients) {
          const auto dweight_D = norm_weight_gradient(weight_D, rstd_T);
          auto dh_TD = norm_backward(gradients[0], h_TD, rstd_T, weight_D, {}, dweight_D);
          if (dweight_D.defined()) add_gradient(weight_D, dweight_D);
          return std::vector<at::Tensor>{dh_TD};
        })[0];
  }
  return y_TD;
}

at::Tensor attention_sublayer(const at::Tensor& h_TD, const BlockWeights& weights,
                              const RowContext& row, const at::Tensor& rows_L) {
  // The parts would need the dropout of some columns of o_proj's input.
  if (row.attention->overlaps_projections() && !weights.o_proj.dropout.active()) {
    ChunkedProjections parts(h_TD, weights, row, rows_L);
    return row.attention->project_and_attend(parts.as_functions(), row.attention_spec(),
                                             row.packing);
  }
  at::Tensor out_TNH;
  {
    const bool differentiable = needs_backward({h_TD}, weights.attention_parameters());
    const Heads heads = differentiable ? differentiable_heads(h_TD, weights, row)
                                       : project_heads(h_TD, weights, row);
    out_TNH = row.attention->attend(heads.q_TNH, heads.k_TMH, heads.v_TMH, row.attention_spec(),
                                    row.packing);
  }
  if (!rows_L.defined()) return project_output(h_TD, out_TNH, weights.o_proj, row);
  return project_output(h_TD.index_select(0, rows_L), out_TNH.index_select(0, rows_L),
                        weights.o_proj.for_rows(rows_L), row);
}

}  // namespace longspan
