#include "longspan/layers/mixer_pass.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/layers/chunked_projections.h"
#include "longspan/spec/device_sizes.h"
#include "longspan/spec/layer_cost.h"

namespace longspan {
namespace {

/// Rows of a chunk, as in the feed-forward, so that tensors inside a chunk are small.
int64_t chunk_rows(const Layer& layer, const RowContext& row, const at::Tensor& h_TD) {
  const int64_t width = std::max(h_TD.size(1), layer.mixer->width());
  return std::max(kMinChunkRows,
                  device_sizes(row.on_gpu).mixer_bytes /
                      (width * static_cast<int64_t>(c10::elementSize(row.compute_dtype))));
}

/// Returns the mixer with the matrices of its first steps cast once for several chunks.
std::unique_ptr<TokenMixer> cast_before(const TokenMixer& mixer, at::ScalarType dtype) {
  std::unique_ptr<TokenMixer> cast = mixer.clone();
  for (Linear* linear : cast->linears_before()) *linear = linear->cast_for_uses(dtype);
  return cast;
}

/// As mixer_inputs(), with a graph: norm and projections in one operation. It saves h, one number
/// for each row, and what the mixer's steps save.
std::vector<at::Tensor> differentiable_inputs(const at::Tensor& h_TD, const Layer& layer,
                                              const RowContext& row) {
  const TokenMixer& mixer = *layer.mixer;
  const RowRange all{0, h_TD.size(0)};
  at::Tensor rstd_T;
  std::vector<at::Tensor> inputs;
  std::vector<SavedStep> saved(mixer.num_inputs());
  {
    c10::NoGradGuard no_grad;
    const NormalizedRows normal =
        normalize_rows(h_TD, layer.mixer_norm_factors(), layer.norm_eps, row.compute_dtype);
    rstd_T = normal.rstd_T;
    const InputRows x{normal.y_TD, all, row};
    for (int i = 0; i < mixer.num_inputs(); ++i) {
      const at::Tensor room = mixer.empty_input(i, all.size, x.x_CD.options());
      inputs.push_back(mixer.input(i, room, x, &saved[i]));
    }
  }
  return attach_backward(
      inputs, {h_TD}, layer.mixer_parameters(),
      [h_TD = h_TD.detach(), rstd_T, layer, row, all, saved = std::move(saved),
       wants_input = h_TD.requires_grad()](std::vector<at::Tensor> gradients) {
        const InputRows x{scale_rows(h_TD, rstd_T, layer.mixer_norm_factors(), row.compute_dtype),
                          all, row};
        const bool wants_dx = wants_input || layer.mixer_norm_D.requires_grad();
        at::Tensor dx_TD;
        for (int i = 0; i < layer.mixer->num_inputs(); ++i) {
          const at::Tensor gradient = std::exchange(gradients[i], {});
          layer.mixer->input_backward(i, gradient, x, &saved[i], wants_dx ? &dx_TD : nullptr);
        }
        if (!wants_dx) return std::vector<at::Tensor>{};
        const auto dweight_D = zeros_for_norm(layer.mixer_norm_D, rstd_T.options());
        auto dh_TD = norm_backward(dx_TD, h_TD, rstd_T, layer.mixer_norm_factors(), {}, dweight_D);
        if (dweight_D.defined()) add_gradient(layer.mixer_norm_D, dweight_D);
        return wants_input ? std::vector<at::Tensor>{dh_TD} : std::vector<at::Tensor>{};
      });
}

}  // namespace

std::vector<at::Tensor> mixer_inputs(const at::Tensor& h_TD, const Layer& layer,
                                     const RowContext& row) {
  c10::NoGradGuard no_grad;
  const int64_t T = h_TD.size(0), chunk = chunk_rows(layer, row, h_TD);
  const auto options = h_TD.options().dtype(row.compute_dtype).requires_grad(false);
  const std::unique_ptr<TokenMixer> mixer = cast_before(*layer.mixer, row.compute_dtype);
  const at::Tensor factors_D = layer.mixer_norm_factors();
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < mixer->num_inputs(); ++i) {
    inputs.push_back(mixer->empty_input(i, T, options));
  }
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const RowRange rows{begin, std::min(chunk, T - begin)};
    const auto h = h_TD.narrow(0, begin, rows.size);
    const InputRows x{normalize_rows(h, factors_D, layer.norm_eps, row.compute_dtype).y_TD, rows,
                      row};
    for (int i = 0; i < mixer->num_inputs(); ++i) {
      mixer->input(i, inputs[i].narrow(0, begin, rows.size), x, /*saved=*/nullptr);
    }
  }
  return inputs;
}

void mixer_inputs_backward(const std::vector<at::Tensor>& gradients, const at::Tensor& h_TD,
                           at::Tensor dh_TD, bool wants_input, const Layer& layer,
                           const RowContext& row) {
  c10::NoGradGuard no_grad;
  const int64_t T = h_TD.size(0), chunk = chunk_rows(layer, row, h_TD);
  const at::Tensor &norm_D = layer.mixer_norm_D, factors_D = layer.mixer_norm_factors();
  const std::unique_ptr<TokenMixer> mixer = cast_before(*layer.mixer, row.compute_dtype);
  at::Tensor dnorm_D;
  PreciseSums sums(layer.mixer->parameters_before(), (T + chunk - 1) / chunk);
  const bool wants_dx = wants_input || norm_D.requires_grad();
  // Runs once without rows, so that every parameter gets a gradient (of zeros).
  for (int64_t begin = 0; begin < std::max<int64_t>(T, 1); begin += chunk) {
    const RowRange rows{begin, std::min(chunk, T - begin)};
    const auto h = h_TD.narrow(0, begin, rows.size);
    const NormalizedRows normal = normalize_rows(h, factors_D, layer.norm_eps, row.compute_dtype);
    const InputRows x{normal.y_TD, rows, row};
    if (!dnorm_D.defined()) dnorm_D = zeros_for_norm(norm_D, normal.rstd_T.options());
    at::Tensor dx;
    for (int i = 0; i < mixer->num_inputs(); ++i) {
      mixer->input_backward(i, gradients[i].narrow(0, begin, rows.size), x, /*saved=*/nullptr,
                            wants_dx ? &dx : nullptr);
    }
    if (!wants_dx) continue;
    const auto dh = dh_TD.narrow(0, begin, rows.size);
    norm_backward_out(dh, dx, h, normal.rstd_T, factors_D, dh, dnorm_D);
  }
  sums.finish();
  if (dnorm_D.defined()) add_gradient(norm_D, dnorm_D);
}

std::shared_ptr<const TokenMixer> with_output_of(const Layer& layer, const at::Tensor& rows_L,
                                                 std::optional<at::ScalarType> dtype) {
  if (!rows_L.defined() && !dtype) return layer.mixer;
  std::shared_ptr<TokenMixer> mixer = layer.mixer->clone();
  for (Linear* linear : mixer->linears_after()) {
    if (rows_L.defined()) *linear = linear->for_rows(rows_L);
    if (dtype) *linear = linear->cast_for_uses(*dtype);
  }
  return mixer;
}

at::Tensor mixer_output_alone(const at::Tensor& h_CD, const at::Tensor& mixed_C,
                              const TokenMixer& mixer, const RowRange& rows) {
  at::Tensor y_CD = at::zeros_like(h_CD);
  mixer.output_out(y_CD, y_CD, mixed_C, rows);
  return y_CD;
}

// Saves the mixed rows, which the attention saves too.
at::Tensor mixer_output(const at::Tensor& h_LD, const at::Tensor& mixed_L,
                        const std::shared_ptr<const TokenMixer>& mixer, const OutputNorm& norm,
                        const RowContext& row) {
  const RowRange all{0, h_LD.size(0)};
  at::Tensor sum_LD, y_LD;
  {
    c10::NoGradGuard no_grad;
    sum_LD = at::empty_like(h_LD);
    if (norm.defined()) {
      y_LD = mixer_output_alone(h_LD, mixed_L, *mixer, all);
      norm.add_out(sum_LD, h_LD, y_LD);
    } else {
      mixer->output_out(sum_LD, h_LD, mixed_L, all);
    }
  }
  std::vector<at::Tensor> parameters = mixer->parameters_after();
  parameters.push_back(norm.weight_D);
  if (!needs_backward({h_LD, mixed_L}, parameters)) return sum_LD;
  return attach_backward({sum_LD}, {h_LD, mixed_L}, parameters,
                         [mixed_L = mixed_L.detach(), y_LD, mixer, norm, all,
                          dtype = row.compute_dtype, wants_mixed = mixed_L.requires_grad()](
                             std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
                           at::Tensor dmixed;
                           if (wants_mixed) dmixed = at::empty(mixed_L.sizes(), mixed_L.options());
                           at::Tensor dy_LD = gradients[0];
                           if (norm.defined()) {
                             const auto dnorm_D = zeros_for_norm(norm.weight_D, y_LD.options());
                             dy_LD = norm.backward(gradients[0], y_LD, dnorm_D);
                             if (dnorm_D.defined()) add_gradient(norm.weight_D, dnorm_D);
                           }
                           mixer->output_backward(dy_LD.to(dtype), mixed_L, all, dmixed);
                           return {gradients[0], dmixed};
                         })[0];
}

bool overlaps(const Layer& layer, const RowContext& row) {
  if (!row.attention->overlaps_projections()) return false;
  // A norm needs the whole output.
  if (layer.mixer_output_norm_D.defined()) return false;
  const std::optional<TokenMixer::Overlap> overlap = layer.mixer->overlap();
  // Overlap projects some heads at a time, and dropout of the output's input cannot be cut by
  // heads.
  return overlap && !overlap->linear->dropout.active();
}

at::Tensor mixer_sublayer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                          const at::Tensor& rows_L) {
  if (overlaps(layer, row)) {
    ChunkedProjections parts(h_TD, layer, row, rows_L);
    return row.attention->project_and_attend(
        parts.as_functions(), layer.mixer->overlap()->attention, row.packing, row.checkpoint);
  }
  at::Tensor mixed_T;
  {
    const bool differentiable = needs_backward({h_TD}, layer.mixer_parameters());
    mixed_T = layer.mixer->mix(
        differentiable ? differentiable_inputs(h_TD, layer, row) : mixer_inputs(h_TD, layer, row),
        row);
  }
  const OutputNorm norm = layer.mixer_output_norm();
  if (!rows_L.defined()) return mixer_output(h_TD, mixed_T, layer.mixer, norm, row);
  return mixer_output(h_TD.index_select(0, rows_L), mixed_T.index_select(0, rows_L),
                      with_output_of(layer, rows_L), norm, row);
}

}  // namespace longspan
