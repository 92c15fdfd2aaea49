#include "longspan/layers/feed_forward_pass.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

int64_t chunk_rows(const FeedForward& feed_forward, const RowContext& row) {
  const auto row_bytes =
      feed_forward.chunk_width(row) * static_cast<int64_t>(c10::elementSize(row.compute_dtype));
  return std::max(feed_forward.min_chunk_rows(),
                  device_sizes(row.on_gpu).feed_forward_bytes / row_bytes);
}

/// Returns the feed-forward for a pass over `num_rows` rows of these options.
std::unique_ptr<FeedForward> cast_for_uses(const FeedForward& feed_forward, int64_t num_rows,
                                           const at::TensorOptions& options) {
  std::unique_ptr<FeedForward> cast = feed_forward.clone();
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  for (Linear* linear : cast->linears_of_all_rows()) *linear = linear->cast_for_uses(dtype);
  cast->cast_for_pass(num_rows, options);
  return cast;
}

/// Splits saved tensors into the feed-forward's own and the output norm's input, which is the last
/// one; a new tensor of zeros where nothing was saved.
std::pair<SavedStep, at::Tensor> taken_apart(SavedStep saved, const at::Tensor& h_CD) {
  if (saved.empty()) return {SavedStep{}, at::zeros_like(h_CD)};
  at::Tensor y_CD = saved.back();
  saved.pop_back();
  return {std::move(saved), y_CD};
}

/// Returns the saved tensors of these rows; empty where nothing is saved.
SavedStep saved_rows(const SavedStep& saved, const RowRange& rows) {
  SavedStep some;
  for (const at::Tensor& x : saved) some.push_back(x.narrow(0, rows.begin, rows.size));
  return some;
}

/// Writes the saved tensors of all rows, and appends each chunk's choice.
at::Tensor forward(const at::Tensor& h_TD, SavedFeedForward& saved, const Layer& layer,
                   const RowContext& row) {
  const auto dtype = row.compute_dtype;
  const std::unique_ptr<FeedForward> cast =
      cast_for_uses(*layer.feed_forward, h_TD.size(0), h_TD.options().dtype(dtype));
  const int64_t T = h_TD.size(0), chunk = feed_forward_chunk_rows(T, layer, row);
  const at::Tensor room =
      cast->forward_room(std::min(chunk, T), !saved.rows.empty(), h_TD.options().dtype(dtype));
  const at::Tensor factors_D = layer.feed_forward_norm_factors();
  auto out_TD = at::empty_like(h_TD);
  const OutputNorm norm = layer.feed_forward_output_norm();
  const int64_t least = cast->takes_all_rows_at_once() ? 1 : 0;
  for (int64_t begin = 0; begin < std::max(T, least); begin += chunk) {
    const RowRange rows{begin, std::min(chunk, T - begin)};
    const auto h = h_TD.narrow(0, begin, rows.size);
    const InputRows x{normalize_rows(h, factors_D, layer.norm_eps, dtype).y_TD, rows, row};
    const at::Tensor out = out_TD.narrow(0, begin, rows.size);
    SharedChoice& choice = saved.choices.emplace_back();
    if (norm.defined()) {
      const auto [own, y] = taken_apart(saved_rows(saved.rows, rows), h);
      cast->forward_out(y, y, x, own, choice, room);
      norm.add_out(out, h, y);
    } else {
      cast->forward_out(out, h, x, saved_rows(saved.rows, rows), choice, room);
    }
  }
  return out_TD;
}

}  // namespace

std::pair<at::Tensor, SavedFeedForward> feed_forward_forward(const at::Tensor& h_TD,
                                                             const Layer& layer,
                                                             const RowContext& row, bool saves) {
  c10::NoGradGuard no_grad;
  SavedFeedForward saved;
  if (saves && row.mlp_tiles == 0) {
    saved.rows =
        layer.feed_forward->empty_saved(h_TD.size(0), h_TD.options().dtype(row.compute_dtype));
    if (layer.feed_forward_output_norm_D.defined()) {
      saved.rows.push_back(at::zeros(h_TD.sizes(), h_TD.options().requires_grad(false)));
    }
  }
  at::Tensor out_TD = forward(h_TD, saved, layer, row);
  return {std::move(out_TD), std::move(saved)};
}

int64_t feed_forward_chunk_rows(int64_t num_rows, const Layer& layer, const RowContext& row) {
  if (layer.feed_forward->takes_all_rows_at_once()) return std::max<int64_t>(1, num_rows);
  if (row.mlp_tiles == 0) return chunk_rows(*layer.feed_forward, row);
  return std::max<int64_t>(1, (num_rows + row.mlp_tiles - 1) / row.mlp_tiles);
}

int64_t feed_forward_num_chunks(int64_t num_rows, const Layer& layer, const RowContext& row) {
  const int64_t rows = feed_forward_chunk_rows(num_rows, layer, row);
  return (num_rows + rows - 1) / rows;
}

at::Tensor feed_forward_sublayer(const at::Tensor& h_TD, const Layer& layer,
                                 const RowContext& row) {
  const bool differentiable = needs_backward({h_TD}, layer.feed_forward_parameters());
  auto [out_TD, saved] = feed_forward_forward(h_TD, layer, row, differentiable);
  if (!differentiable) return out_TD;
  return attach_backward({out_TD}, {h_TD}, layer.feed_forward_parameters(),
                         [h_TD = h_TD.detach(), saved = std::move(saved), layer,
                          row](std::vector<at::Tensor> gradients) -> std::vector<at::Tensor> {
                           return {feed_forward_backward(gradients[0], h_TD, saved, layer, row)};
                         })[0];
}

FeedForwardBackward::FeedForwardBackward(const at::TensorOptions& residual, int64_t num_rows,
                                         SavedFeedForward saved, const Layer& layer,
                                         const RowContext& row)
    : layer_(layer),
      row_(row),
      saved_(std::move(saved)),
      chunk_rows_(feed_forward_chunk_rows(num_rows, layer, row)),
      cast_(cast_for_uses(*layer.feed_forward, num_rows, residual.dtype(row.compute_dtype))),
      dnorm_D_(zeros_for_norm(layer.feed_forward_norm_D, residual)),
      sums_(layer.feed_forward_parameters(), feed_forward_num_chunks(num_rows, layer, row)) {
  const int64_t most = std::min(chunk_rows_, num_rows);
  const at::TensorOptions options = residual.dtype(row.compute_dtype);
  const OutputNorm norm = layer.feed_forward_output_norm();
  const bool has_rows = !saved_.rows.empty();
  room_ = cast_->backward_room(most, has_rows || norm.defined(), options);
  if (!norm.defined()) return;
  doutput_norm_D_ = zeros_for_norm(norm.weight_D, residual);
  if (has_rows) return;
  again_ = cast_->empty_saved(most, options);
  forward_room_ = cast_->forward_room(most, /*saved=*/true, options);
}

void FeedForwardBackward::chunk(int64_t begin, const at::Tensor& h_CD, const at::Tensor& dout_CD,
                                const at::Tensor& dh_CD) {
  const RowRange rows{begin, h_CD.size(0)};
  const SavedStep saved = saved_rows(saved_.rows, rows);
  // A row of no tokens may have had no chunk.
  const auto number = static_cast<size_t>(begin / chunk_rows_);
  SharedChoice choice = number < saved_.choices.size() ? saved_.choices[number] : nullptr;
  const at::Tensor factors_D = layer_.feed_forward_norm_factors();
  const NormalizedRows normal =
      normalize_rows(h_CD, factors_D, layer_.norm_eps, row_.compute_dtype);
  const InputRows x{normal.y_TD, rows, row_};
  at::Tensor dy_CD = dout_CD;
  SavedStep own = saved;
  if (const OutputNorm norm = layer_.feed_forward_output_norm(); norm.defined()) {
    // The norm's backward needs the output, which is recomputed where it was not saved.
    at::Tensor y_CD;
    if (saved.empty()) {
      own = saved_rows(again_, {0, rows.size});
      y_CD = at::zeros_like(h_CD);
      cast_->forward_out(y_CD, y_CD, x, own, choice, forward_room_);
    } else {
      std::tie(own, y_CD) = taken_apart(saved, h_CD);
    }
    dy_CD = norm.backward(dout_CD, y_CD, doutput_norm_D_);
  }
  const auto dx_CD = cast_->backward(dy_CD.to(row_.compute_dtype), x, own, choice, room_);
  norm_backward_out(dh_CD, dx_CD, h_CD, normal.rstd_T, factors_D, dout_CD, dnorm_D_);
}

void FeedForwardBackward::finish() {
  if (dnorm_D_.defined()) add_gradient(layer_.feed_forward_norm_D, dnorm_D_);
  if (doutput_norm_D_.defined()) {
    add_gradient(layer_.feed_forward_output_norm_D, doutput_norm_D_);
  }
  sums_.finish();
}

at::Tensor feed_forward_backward(const at::Tensor& dout_TD, const at::Tensor& h_TD,
                                 SavedFeedForward saved, const Layer& layer,
                                 const RowContext& row) {
  c10::NoGradGuard no_grad;
  const int64_t T = h_TD.size(0), chunk = feed_forward_chunk_rows(T, layer, row);
  FeedForwardBackward backward(h_TD.options(), T, std::move(saved), layer, row);
  auto dh_TD = at::empty_like(h_TD);
  // Runs once without rows, so that every parameter gets a gradient (of zeros).
  for (int64_t begin = 0; begin < std::max<int64_t>(T, 1); begin += chunk) {
    const RowRange rows{begin, std::min(chunk, T - begin)};
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows.size); };
    backward.chunk(begin, part(h_TD), part(dout_TD), part(dh_TD));
  }
  backward.finish();
  return dh_TD;
}

}  // namespace longspan
