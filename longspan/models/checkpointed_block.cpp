#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "longspan/attention/saved_attention.h"
#include "longspan/models/decoder_block.h"
#include "longspan/models/fused_op.h"

namespace longspan {
namespace {

/// Where no store is given: tensors stay what they are.
class SavedHere : public SavedTensors {
 public:
  explicit SavedHere(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  at::Tensor get(size_t i) override { return tensors_.at(i); }
  void read_previous_ahead() override {}

 private:
  std::vector<at::Tensor> tensors_;
};

/// One block of one row, between its forward and its backward.
class Checkpoint {
 public:
  Checkpoint(const BlockWeights& weights, const RowContext& row, at::Tensor rows_L,
             bool wants_input)
      : weights_(weights), row_(row), rows_L_(std::move(rows_L)), wants_input_(wants_input) {}

  at::Tensor forward(const at::Tensor& h_TD);
  std::vector<at::Tensor> backward(std::vector<at::Tensor> gradients);

 private:
  // What is saved: h, the attention's output for the tokens (where it is), and out and lse of each
  // leaf attention.
  static constexpr size_t kHidden = 0;

  bool chunked() const {
    return row_.attention->overlaps_projections() && !weights_.o_proj.dropout.active();
  }
  void keep(const at::Tensor& h_TD, const at::Tensor& out_TNH, SavedAttention& results);
  at::Tensor replay(at::Tensor h_TD);
  bool trains_attention() const;
  at::Tensor output_backward(at::Tensor dout_LD, const at::Tensor& h_TD, const at::Tensor& out_TNH,
                             at::Tensor& dattention_TNH);
  void attention_backward(at::Tensor out_TNH, at::Tensor dout_TNH);
  std::vector<at::Tensor> chunked_backward(at::Tensor dout_LD);

  BlockWeights weights_;
  RowContext row_;
  at::Tensor rows_L_;
  bool wants_input_;
  std::shared_ptr<SavedTensors> saved_;
  std::optional<size_t> out_;                      // its place
  std::vector<std::pair<size_t, size_t>> leaves_;  // places of out and lse
  SavedAttention replayed_;
  Heads gradients_;
};

at::Tensor Checkpoint::forward(const at::Tensor& h_TD) {
  c10::NoGradGuard no_grad;
  SavedAttention results;
  at::Tensor out_TNH, middle_LD;
  if (chunked()) {
    const SaveScope scope(results);
    middle_LD = attention_sublayer(h_TD, weights_, row_, rows_L_);
  } else {
    {
      const SaveScope scope(results);
      const Heads heads = project_heads(h_TD, weights_, row_);
      out_TNH = row_.attention->attend(heads.q_TNH, heads.k_TMH, heads.v_TMH, row_.attention_spec(),
                                       row_.packing);
    }
    middle_LD = rows_L_.defined() ? project_output(h_TD.index_select(0, rows_L_),
                                                   out_TNH.index_select(0, rows_L_),
                                                   weights_.o_proj.for_rows(rows_L_), row_)
                                  : project_output(h_TD, out_TNH, weights_.o_proj, row_);
  }
  keep(h_TD, out_TNH, results);
  return mlp_sublayer(middle_LD, weights_, row_);
}

void Checkpoint::keep(const at::Tensor& h_TD, const at::Tensor& out_TNH, SavedAttention& results) {
  std::vector<at::Tensor> tensors{h_TD.detach()};
  for (const AttentionResult& result : results.results) {
    leaves_.emplace_back(tensors.size(), tensors.size() + 1);
    tensors.push_back(result.out_TNH);
    tensors.push_back(result.lse_NT);
    // Without processes to exchange with, the leaf's output is the attention's.
    if (out_TNH.defined() && result.out_TNH.data_ptr() == out_TNH.data_ptr() &&
        result.out_TNH.sizes() == out_TNH.sizes()) {
      out_ = leaves_.back().first;
    }
  }
  if (row_.store == nullptr) {
    saved_ = std::make_shared<SavedHere>(std::move(tensors));
    return;
  }
  // Keeping the attention output lets the backward finish the MLP before it recomputes q, k, v.
  if (out_TNH.defined() && !out_) {
    out_ = tensors.size();
    tensors.push_back(out_TNH);
    replayed_.output_is_known = !row_.attention->overlaps_projections();
  }
  saved_ = row_.store->put(std::move(tensors));
}

bool Checkpoint::trains_attention() const {
  if (wants_input_) return true;
  std::vector<at::Tensor> parameters{weights_.input_norm, weights_.q_norm, weights_.k_norm};
  for (const Linear* layer : {&weights_.q_proj, &weights_.k_proj, &weights_.v_proj}) {
    for (const at::Tensor& parameter : layer->parameters()) parameters.push_back(parameter);
  }
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.defined() && parameter.requires_grad();
  });
}

/// The attention's output around the saved results, with a graph that ends at gradients_.
at::Tensor Checkpoint::replay(at::Tensor h_TD) {
  std::vector<at::Tensor> inputs;
  {
    Heads heads = project_heads(h_TD, weights_, row_);
    // Drop h now: if it is stored off-device, its device memory is free before attention runs.
    h_TD.reset();
    inputs = {std::move(heads.q_TNH), std::move(heads.k_TMH), std::move(heads.v_TMH)};
  }
  const auto options = inputs[0].options();
  const c10::AutoGradMode with_graph(trains_attention());
  if (trains_attention()) {
    const at::Tensor anything = at::empty({0}, options).requires_grad_(true);
    inputs = attach_backward(inputs, {}, {anything}, [this](std::vector<at::Tensor> gradients) {
      gradients_ = {std::move(gradients[0]), std::move(gradients[1]), std::move(gradients[2])};
      return std::vector<at::Tensor>{};
    });
  }
  const ReplayScope scope(replayed_);
  return row_.attention->attend(inputs[0], inputs[1], inputs[2], row_.attention_spec(),
                                row_.packing);
}

/// Through the MLP and the output projection: d loss / d (h + o_proj(out)), [L, D], and that of the
/// attention's output into dattention_TNH.
at::Tensor Checkpoint::output_backward(at::Tensor dout_LD, const at::Tensor& h_TD,
                                       const at::Tensor& out_TNH, at::Tensor& dattention_TNH) {
  c10::NoGradGuard no_grad;
  const bool some = rows_L_.defined(), needed = trains_attention();
  const int64_t L = dout_LD.size(0), chunk = mlp_chunk_rows(L, weights_, row_);
  const auto dtype = row_.compute_dtype;
  const Linear whole = some ? weights_.o_proj.for_rows(rows_L_) : weights_.o_proj;
  const Linear o_proj = whole.cast(dtype);
  at::Tensor dmiddle_LD = is_sole_owner(dout_LD) && dout_LD.is_contiguous()
                              ? std::move(dout_LD)
                              : dout_LD.clone(at::MemoryFormat::Contiguous);
  if (needed) {
    dattention_TNH = some ? at::zeros_like(out_TNH) : at::empty_like(out_TNH);
  }
  MlpBackward mlp(h_TD.options(), L, /*recomputes=*/true, weights_, row_);
  PreciseSums sums(whole.parameters(), mlp_num_chunks(L, weights_, row_));
  // No labels, no rows: every parameter still gets its gradient, of zeros.
  for (int64_t begin = 0; begin < std::max<int64_t>(L, 1); begin += chunk) {
    const int64_t size = std::min(chunk, L - begin);
    const at::Tensor rows = some ? rows_L_.narrow(0, begin, size) : at::Tensor();
    const auto part = [&](const at::Tensor& x) {
      return some ? x.index_select(0, rows) : x.narrow(0, begin, size);
    };
    const at::Tensor out = part(out_TNH).flatten(1);
    const Linear proj = o_proj.for_rows(begin, size);
    auto dmiddle = dmiddle_LD.narrow(0, begin, size);
    {
      at::Tensor middle = part(h_TD);
      if (middle.scalar_type() == dtype) {
        if (!some) middle = middle.clone();
        proj.add_forward_(middle, out);
      } else {
        middle = middle + proj.forward(out);
      }
      mlp.chunk(begin, middle, dmiddle);
    }
    const at::Tensor dsum = dmiddle.to(dtype);
    whole.for_rows(begin, size).add_gradients(dsum, out);
    if (!needed) continue;
    if (some) {
      dattention_TNH.flatten(1).index_copy_(0, rows, proj.input_gradient(dsum));
    } else {
      proj.input_gradient_out(dattention_TNH.narrow(0, begin, size).flatten(1), dsum);
    }
  }
  sums.finish();
  mlp.finish();
  return dmiddle_LD;
}

/// Both tensors are moved into the graph, so they are freed as soon as autograd is done with them.
void Checkpoint::attention_backward(at::Tensor out_TNH, at::Tensor dout_TNH) {
  const c10::AutoGradMode with_graph(true);
  auto give = [dout_TNH = std::move(dout_TNH)](std::vector<at::Tensor>) mutable {
    return std::vector<at::Tensor>{std::move(dout_TNH)};
  };
  const at::Tensor start = attach_backward({at::zeros({}, out_TNH.options().requires_grad(false))},
                                           {out_TNH}, {}, std::move(give))[0];
  out_TNH.reset();
  torch::autograd::backward({start}, {});
}

std::vector<at::Tensor> Checkpoint::backward(std::vector<at::Tensor> gradients) {
  at::Tensor dout_LD = std::move(gradients[0]);
  gradients.clear();
  const bool stored = row_.store != nullptr;
  at::Tensor attended;  // one of the leaves', too
  for (const auto& [out, lse] : leaves_) {
    replayed_.results.push_back({saved_->get(out), saved_->get(lse)});
    if (out_ == out) attended = replayed_.results.back().out_TNH;
  }
  if (chunked()) return chunked_backward(std::move(dout_LD));

  at::Tensor h_TD = saved_->get(kHidden), replayed_out;
  if (out_ && !attended.defined()) attended = saved_->get(*out_);
  if (!out_) attended = replayed_out = replay(h_TD);
  at::Tensor dattention_TNH;
  at::Tensor dmiddle_LD =
      output_backward(std::move(dout_LD), h_TD, attended.detach(), dattention_TNH);
  attended.reset();
  if (!trains_attention()) return {};

  // Offload dmiddle too: it is not needed until attention's backward is done.
  std::shared_ptr<SavedTensors> aside;
  if (stored) aside = row_.store->put({std::exchange(dmiddle_LD, {})}, /*briefly=*/true);
  if (!replayed_out.defined()) {
    replayed_out = replay(stored ? std::exchange(h_TD, {}) : h_TD);
  }
  saved_->read_previous_ahead();
  attention_backward(std::move(replayed_out), std::move(dattention_TNH));
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
  project_heads_backward(std::exchange(gradients_, {}), h_TD, dh_TD, wants_input_, weights_, row_);
  if (!wants_input_) return {};
  return {std::move(dh_TD)};
}

/// An attention that asks for the projections in parts has them in its graph.
std::vector<at::Tensor> Checkpoint::chunked_backward(at::Tensor dout_LD) {
  const auto input_TD = saved_->get(kHidden).detach().requires_grad_(wants_input_);
  at::Tensor middle;
  {
    const c10::AutoGradMode with_graph(true);
    const ReplayScope replay(replayed_);
    middle = attention_sublayer(input_TD, weights_, row_, rows_L_);
  }
  // The MLP's output is not needed again, so its down projection is never recomputed.
  const auto dmiddle = mlp_sublayer_backward(dout_LD, middle.detach(), {}, {}, weights_, row_);
  dout_LD.reset();
  saved_->read_previous_ahead();
  if (middle.requires_grad()) torch::autograd::backward({middle}, {dmiddle});
  saved_.reset();
  return {input_TD.grad()};
}

}  // namespace

at::Tensor block(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row,
                 const at::Tensor& rows_L) {
  return mlp_sublayer(attention_sublayer(h_TD, weights, row, rows_L), weights, row);
}

at::Tensor checkpointed_block(const at::Tensor& h_TD, const BlockWeights& weights,
                              const RowContext& row, const at::Tensor& rows_L) {
  auto parameters = weights.attention_parameters();
  for (auto& parameter : weights.mlp_parameters()) parameters.push_back(parameter);
  if (!needs_backward({h_TD}, parameters)) return block(h_TD, weights, row, rows_L);
  const auto checkpoint = std::make_shared<Checkpoint>(weights, row, rows_L, h_TD.requires_grad());
  const at::Tensor out = checkpoint->forward(h_TD);
  return attach_backward({out}, {h_TD}, parameters,
                         [checkpoint](std::vector<at::Tensor> gradients) {
                           return checkpoint->backward(std::move(gradients));
                         })[0];
}

}  // namespace longspan
