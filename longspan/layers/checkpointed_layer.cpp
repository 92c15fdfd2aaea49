#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "longspan/attention/saved_attention.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/layers/feed_forward_pass.h"
#include "longspan/layers/layer.h"
#include "longspan/layers/mixer_pass.h"

namespace longspan {
namespace {

/// Keeps the tensors where they are. Used without a store.
class SavedHere : public SavedTensors {
 public:
  explicit SavedHere(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  at::Tensor get(size_t i) override { return tensors_.at(i); }
  void read_previous_ahead() override {}

 private:
  std::vector<at::Tensor> tensors_;
};

RowContext with(AttentionCheckpoint checkpoint, RowContext row) {
  row.checkpoint = checkpoint;
  return row;
}

/// One layer on one row, between its forward and its backward.
class Checkpoint {
 public:
  Checkpoint(const Layer& layer, const RowContext& row, at::Tensor rows_L, bool wants_input)
      : layer_(layer), row_(row), rows_L_(std::move(rows_L)), wants_input_(wants_input) {}

  at::Tensor forward(const at::Tensor& h_TD);
  std::vector<at::Tensor> backward(std::vector<at::Tensor> gradients);

 private:
  // Saved tensors: h, the attention's output (where needed), and out and lse of each leaf
  // attention. The feed-forward's saved tensors and choices always stay on the device.
  static constexpr size_t kHidden = 0;

  void keep(const at::Tensor& h_TD, const at::Tensor& mixed_T, SavedAttention& results);
  at::Tensor replay(at::Tensor h_TD);
  bool trains_inputs() const;
  at::Tensor output_backward(at::Tensor dout_LD, const at::Tensor& h_TD, const at::Tensor& mixed_T,
                             at::Tensor& dmixed_T);
  void attention_backward(at::Tensor mixed_T, at::Tensor dmixed_T);
  std::vector<at::Tensor> chunked_backward(at::Tensor dout_LD);

  Layer layer_;
  RowContext row_;
  at::Tensor rows_L_;
  bool wants_input_;
  std::shared_ptr<SavedTensors> saved_;
  SavedFeedForward feed_forward_;
  std::optional<size_t> out_;                      // its index
  std::vector<std::pair<size_t, size_t>> leaves_;  // indices of out and lse
  SavedAttention replayed_;
  std::vector<at::Tensor> gradients_;  // of the mixer's inputs
};

at::Tensor Checkpoint::forward(const at::Tensor& h_TD) {
  c10::NoGradGuard no_grad;
  SavedAttention results;
  at::Tensor mixed_T, middle_LD;
  const RowContext saving = with(AttentionCheckpoint::saving(results), row_);
  if (overlaps(layer_, row_)) {
    middle_LD = mixer_sublayer(h_TD, layer_, saving, rows_L_);
  } else {
    mixed_T = layer_.mixer->mix(mixer_inputs(h_TD, layer_, row_), saving);
    const auto mixer = with_output_of(layer_, rows_L_);
    const OutputNorm norm = layer_.mixer_output_norm();
    middle_LD = rows_L_.defined()
                    ? mixer_output(h_TD.index_select(0, rows_L_), mixed_T.index_select(0, rows_L_),
                                   mixer, norm, row_)
                    : mixer_output(h_TD, mixed_T, mixer, norm, row_);
  }
  keep(h_TD, mixed_T, results);
  auto [out_LD, saved] = feed_forward_forward(middle_LD, layer_, row_, layer_.keeps_feed_forward);
  feed_forward_ = std::move(saved);
  return out_LD;
}

void Checkpoint::keep(const at::Tensor& h_TD, const at::Tensor& mixed_T, SavedAttention& results) {
  std::vector<at::Tensor> tensors{h_TD.detach()};
  for (const AttentionResult& result : results.results) {
    leaves_.emplace_back(tensors.size(), tensors.size() + 1);
    tensors.push_back(result.out_TNH);
    tensors.push_back(result.lse_NT);
    // Where no process exchanges, the leaf's output is the attention's.
    if (mixed_T.defined() && result.out_TNH.data_ptr() == mixed_T.data_ptr() &&
        result.out_TNH.sizes() == mixed_T.sizes()) {
      out_ = leaves_.back().first;
    }
  }
  if (row_.store == nullptr) {
    saved_ = std::make_shared<SavedHere>(std::move(tensors));
    return;
  }
  // With the attention's output saved, the backward can finish the MLP before it recomputes q, k,
  // v.
  if (mixed_T.defined() && !out_) {
    out_ = tensors.size();
    tensors.push_back(mixed_T);
    replayed_.output_is_known =
        !row_.attention->overlaps_projections() && layer_.mixer->mixes_by_attention_alone();
  }
  saved_ = row_.store->put(std::move(tensors));
}

bool Checkpoint::trains_inputs() const {
  if (wants_input_) return true;
  std::vector<at::Tensor> parameters = layer_.mixer->parameters_before();
  parameters.push_back(layer_.mixer_norm_D);
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.defined() && parameter.requires_grad();
  });
}

/// Returns the mixing's output from saved results, with a graph that ends at gradients_.
at::Tensor Checkpoint::replay(at::Tensor h_TD) {
  std::vector<at::Tensor> inputs = mixer_inputs(h_TD, layer_, row_);
  // Drops h now: where it is stored off-device, its device memory is free before attention runs.
  h_TD.reset();
  const auto options = inputs[0].options();
  const c10::AutoGradMode with_graph(trains_inputs());
  if (trains_inputs()) {
    const at::Tensor anything = at::empty({0}, options).requires_grad_(true);
    inputs = attach_backward(inputs, {}, {anything}, [this](std::vector<at::Tensor> gradients) {
      gradients_ = std::move(gradients);
      return std::vector<at::Tensor>{};
    });
  }
  return layer_.mixer->mix(inputs, with(AttentionCheckpoint::replaying(replayed_), row_));
}

/// Backward through the feed-forward and the mixer's output. Returns d loss / d (h + output), [L,
/// D], and writes d loss / d mixed into dmixed_T.
at::Tensor Checkpoint::output_backward(at::Tensor dout_LD, const at::Tensor& h_TD,
                                       const at::Tensor& mixed_T, at::Tensor& dmixed_T) {
  c10::NoGradGuard no_grad;
  const bool some = rows_L_.defined(), needed = trains_inputs();
  const int64_t L = dout_LD.size(0), chunk = feed_forward_chunk_rows(L, layer_, row_);
  const auto dtype = row_.compute_dtype;
  const std::shared_ptr<const TokenMixer> mixer = with_output_of(layer_, rows_L_, dtype);
  at::Tensor dmiddle_LD = is_sole_owner(dout_LD) && dout_LD.is_contiguous()
                              ? std::move(dout_LD)
                              : dout_LD.clone(at::MemoryFormat::Contiguous);
  if (needed) {
    dmixed_T = some ? at::zeros(mixed_T.sizes(), mixed_T.options())
                    : at::empty(mixed_T.sizes(), mixed_T.options());
  }
  FeedForwardBackward feed_forward(h_TD.options(), L, std::exchange(feed_forward_, {}), layer_,
                                   row_);
  const OutputNorm norm = layer_.mixer_output_norm();
  const at::Tensor dnorm_D =
      norm.defined() ? zeros_for_norm(norm.weight_D, h_TD.options()) : at::Tensor();
  PreciseSums sums(mixer->parameters_after(), feed_forward_num_chunks(L, layer_, row_));
  // Runs once without rows, so that every parameter gets a gradient (of zeros).
  for (int64_t begin = 0; begin < std::max<int64_t>(L, 1); begin += chunk) {
    const RowRange rows{begin, std::min(chunk, L - begin)};
    const at::Tensor numbers = some ? rows_L_.narrow(0, begin, rows.size) : at::Tensor();
    const auto part = [&](const at::Tensor& x) {
      return some ? x.index_select(0, numbers) : x.narrow(0, begin, rows.size);
    };
    const at::Tensor mixed = part(mixed_T);
    auto dmiddle = dmiddle_LD.narrow(0, begin, rows.size);
    at::Tensor dy = dmiddle, y;
    {
      const at::Tensor h = part(h_TD), middle = some ? h : at::empty_like(h);
      if (norm.defined()) {
        y = mixer_output_alone(h, mixed, *mixer, rows);
        norm.add_out(middle, h, y);
      } else {
        mixer->output_out(middle, h, mixed, rows);
      }
      feed_forward.chunk(begin, middle, dmiddle, dmiddle);
    }
    if (norm.defined()) dy = norm.backward(dmiddle, y, dnorm_D);
    at::Tensor dmixed;
    if (needed) {
      dmixed =
          some ? at::empty(mixed.sizes(), mixed.options()) : dmixed_T.narrow(0, begin, rows.size);
    }
    mixer->output_backward(dy.to(dtype), mixed, rows, dmixed);
    if (needed && some) dmixed_T.index_copy_(0, numbers, dmixed);
  }
  if (dnorm_D.defined()) add_gradient(norm.weight_D, dnorm_D);
  sums.finish();
  feed_forward.finish();
  return dmiddle_LD;
}

/// Moves both tensors into the graph, so that autograd frees them early.
void Checkpoint::attention_backward(at::Tensor mixed_T, at::Tensor dmixed_T) {
  const c10::AutoGradMode with_graph(true);
  auto give = [dmixed_T = std::move(dmixed_T)](std::vector<at::Tensor>) mutable {
    return std::vector<at::Tensor>{std::move(dmixed_T)};
  };
  const at::Tensor start = attach_backward({at::zeros({}, mixed_T.options().requires_grad(false))},
                                           {mixed_T}, {}, std::move(give))[0];
  mixed_T.reset();
  torch::autograd::backward({start}, {});
}

std::vector<at::Tensor> Checkpoint::backward(std::vector<at::Tensor> gradients) {
  at::Tensor dout_LD = std::move(gradients[0]);
  gradients.clear();
  const bool stored = row_.store != nullptr;
  at::Tensor attended;  // shared with one of the leaves
  for (const auto& [out, lse] : leaves_) {
    replayed_.results.push_back({saved_->get(out), saved_->get(lse)});
    if (out_ == out) attended = replayed_.results.back().out_TNH;
  }
  if (overlaps(layer_, row_)) return chunked_backward(std::move(dout_LD));

  at::Tensor h_TD = saved_->get(kHidden), replayed_out;
  if (out_ && !attended.defined()) attended = saved_->get(*out_);
  if (!out_) attended = replayed_out = replay(h_TD);
  at::Tensor dmixed_T;
  at::Tensor dmiddle_LD = output_backward(std::move(dout_LD), h_TD, attended.detach(), dmixed_T);
  attended.reset();
  if (!trains_inputs()) return {};

  // Offloads dmiddle too, which is not needed until the attention's backward is done.
  std::shared_ptr<SavedTensors> aside;
  if (stored) aside = row_.store->put({std::exchange(dmiddle_LD, {})}, /*briefly=*/true);
  if (!replayed_out.defined()) {
    replayed_out = replay(stored ? std::exchange(h_TD, {}) : h_TD);
  }
  saved_->read_previous_ahead();
  attention_backward(std::move(replayed_out), std::move(dmixed_T));
  if (stored) {
    h_TD = saved_->get(kHidden);
    dmiddle_LD = aside->get(0);
    aside.reset();
  }
  saved_.reset();

  at::Tensor dh_TD = std::move(dmiddle_LD);
  if (rows_L_.defined()) {
    const c10::NoGradGuard no_grad;
    dh_TD = at::zeros_like(h_TD).index_copy_(0, rows_L_, dh_TD);
  }
  mixer_inputs_backward(std::exchange(gradients_, {}), h_TD, dh_TD, wants_input_, layer_, row_);
  if (!wants_input_) return {};
  return {std::move(dh_TD)};
}

/// The backward of an attention with chunked projections, which are in its graph.
std::vector<at::Tensor> Checkpoint::chunked_backward(at::Tensor dout_LD) {
  const auto input_TD = saved_->get(kHidden).detach().requires_grad_(wants_input_);
  at::Tensor middle;
  {
    const c10::AutoGradMode with_graph(true);
    const RowContext replaying = with(AttentionCheckpoint::replaying(replayed_), row_);
    middle = mixer_sublayer(input_TD, layer_, replaying, rows_L_);
  }
  // The MLP's output is not needed again, so its down projection is never recomputed.
  const auto dmiddle = feed_forward_backward(dout_LD, middle.detach(),
                                             std::exchange(feed_forward_, {}), layer_, row_);
  dout_LD.reset();
  saved_->read_previous_ahead();
  if (middle.requires_grad()) torch::autograd::backward({middle}, {dmiddle});
  saved_.reset();
  return {input_TD.grad()};
}

}  // namespace

at::Tensor run_checkpointed(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                            const at::Tensor& rows_L) {
  auto parameters = layer.mixer_parameters();
  for (auto& parameter : layer.feed_forward_parameters()) parameters.push_back(parameter);
  if (!needs_backward({h_TD}, parameters)) return run_layer(h_TD, layer, row, rows_L);
  const auto checkpoint = std::make_shared<Checkpoint>(layer, row, rows_L, h_TD.requires_grad());
  const at::Tensor out = checkpoint->forward(h_TD);
  return attach_backward({out}, {h_TD}, parameters,
                         [checkpoint](std::vector<at::Tensor> gradients) {
                           return checkpoint->backward(std::move(gradients));
                         })[0];
}

}  // namespace longspan
