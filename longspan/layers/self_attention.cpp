#include "longspan/layers/self_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/output_gate.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/layers/plain_steps.h"

namespace longspan {
namespace {

RotaryTable rows_of(const RotaryTable& table, const RowRange& rows) {
  return table.of_rows(rows.begin, rows.size);
}

}  // namespace

SelfAttention::SelfAttention(const SelfAttentionSpec& spec, Weights weights, const Norm& norm,
                             size_t rotary)
    : ProjectedMixer(std::exchange(weights.o_proj, {})),
      spec_(spec),
      weights_(std::move(weights)),
      norm_(norm),
      rotary_(rotary) {}

std::unique_ptr<TokenMixer> SelfAttention::clone() const {
  return std::make_unique<SelfAttention>(*this);
}

std::vector<Linear*> SelfAttention::linears_before() {
  return {&weights_.q_proj, &weights_.k_proj, &weights_.v_proj};
}

std::vector<at::Tensor> SelfAttention::parameters_before() const {
  std::vector<at::Tensor> parameters{weights_.q_norm_K, weights_.k_norm_K, weights_.sinks_N};
  append_parameters(parameters, {&weights_.q_proj, &weights_.k_proj, &weights_.v_proj});
  return parameters;
}

SelfAttention::Projection SelfAttention::projection(int i) const {
  static const at::Tensor kNoNorm;
  const AttentionSpec& attention = spec_.attention;
  const bool rotated = spec_.rotary.has_value();
  if (i == 0) {
    return {weights_.q_proj,     weights_.q_norm_K, rotated,
            attention.num_heads, attention.key_dim, spec_.output_gate ? attention.value_dim : 0};
  }
  if (i == 1) {
    return {weights_.k_proj,        weights_.k_norm_K, rotated,
            attention.num_kv_heads, attention.key_dim, 0};
  }
  TORCH_CHECK(i == 2, "self-attention has no input ", i);
  return {weights_.v_proj, kNoNorm, false, attention.num_kv_heads, attention.value_dim, 0};
}

at::Tensor SelfAttention::empty_input(int i, int64_t num_rows,
                                      const at::TensorOptions& options) const {
  const Projection projection = this->projection(i);
  return at::empty({num_rows, projection.num_heads, projection.row_dim()}, options);
}

at::Tensor SelfAttention::normed_and_rotated(const Projection& projection, at::Tensor room,
                                             const RowRange& rows, const RowContext& row,
                                             SavedStep* saved) const {
  const at::Tensor heads_CNH = room.narrow(2, 0, projection.head_dim);
  const bool saves_room = saved != nullptr && projection.gate_dim == 0;
  const at::Tensor x_CNH =
      saved == nullptr || saves_room ? heads_CNH : heads_CNH.clone(at::MemoryFormat::Contiguous);
  at::Tensor y_CNH = saves_room ? at::Tensor() : heads_CNH, rstd_R;
  norm_rotate_out(y_CNH, saved != nullptr ? &rstd_R : nullptr, x_CNH,
                  norm_factors(projection.norm_H, norm_.kind),
                  rows_of(row.rotary.at(rotary_), rows), norm_.eps);
  if (saved != nullptr) *saved = {x_CNH, rstd_R};
  return saves_room ? y_CNH : room;
}

at::Tensor SelfAttention::normed_or_rotated(const Projection& projection, at::Tensor heads_CNH,
                                            const RowRange& rows, const RowContext& row,
                                            SavedStep* saved) const {
  if (projection.norm_H.defined()) {
    const auto [rstd_R, y_RH] =
        normalize_rows(heads_as_rows(heads_CNH), norm_factors(projection.norm_H, norm_.kind),
                       norm_.eps, heads_CNH.scalar_type());
    const at::Tensor y_CNH = y_RH.view(heads_CNH.sizes());
    if (saved != nullptr) {
      *saved = {std::exchange(heads_CNH, y_CNH), rstd_R};
    } else {
      heads_CNH.copy_(y_CNH);
    }
  } else if (projection.is_rotated) {
    rotate_(heads_CNH, rows_of(row.rotary.at(rotary_), rows), /*inverse=*/false);
  }
  return heads_CNH;
}

at::Tensor SelfAttention::input(int i, at::Tensor room, const InputRows& x,
                                SavedStep* saved) const {
  const auto& [x_CD, rows, row] = x;
  const Projection projection = this->projection(i);
  projection.linear.for_rows(rows.begin, rows.size).forward_out(room.flatten(1), x_CD);
  if (projection.norm_H.defined() && projection.is_rotated) {
    return normed_and_rotated(projection, std::move(room), rows, row, saved);
  }
  if (projection.gate_dim == 0) {
    return normed_or_rotated(projection, std::move(room), rows, row, saved);
  }
  // Norm and rotation take heads without gates.
  const at::Tensor heads_CNH = room.narrow(2, 0, projection.head_dim);
  heads_CNH.copy_(normed_or_rotated(projection, heads_CNH.clone(at::MemoryFormat::Contiguous), rows,
                                    row, saved));
  return room;
}

at::Tensor SelfAttention::heads_backward(const Projection& projection, const at::Tensor& dheads_CNH,
                                         const InputRows& x, const SavedStep* saved) const {
  const auto& [x_CD, rows, row] = x;
  const at::Tensor& norm_H = projection.norm_H;
  if (!norm_H.defined()) {
    return projection.is_rotated
               ? rotate(dheads_CNH, rows_of(row.rotary.at(rotary_), rows), /*inverse=*/true)
               : dheads_CNH;
  }
  at::Tensor x_CNH, rstd_R;
  if (saved != nullptr) {
    x_CNH = (*saved)[0];
    rstd_R = (*saved)[1];
  } else {
    x_CNH = projection.linear.for_rows(rows.begin, rows.size)
                .forward(x_CD)
                .view({-1, projection.num_heads, projection.row_dim()})
                .narrow(2, 0, projection.head_dim);
  }
  const at::Tensor dnorm_H = zeros_for_norm(norm_H, x_CNH.options());
  const at::Tensor factors_H = norm_factors(norm_H, norm_.kind);
  at::Tensor dx_CNH;
  if (projection.is_rotated) {
    dx_CNH = norm_rotate_backward(dheads_CNH, x_CNH, rstd_R, factors_H,
                                  rows_of(row.rotary.at(rotary_), rows), norm_.eps, dnorm_H);
  } else {
    const at::Tensor x_RH = heads_as_rows(x_CNH);
    if (!rstd_R.defined()) rstd_R = reciprocal_rms(x_RH, norm_.eps);
    dx_CNH = norm_backward(heads_as_rows(dheads_CNH), x_RH, rstd_R, factors_H, {}, dnorm_H)
                 .view(dheads_CNH.sizes());
  }
  if (dnorm_H.defined()) add_gradient(norm_H, dnorm_H);
  return dx_CNH;
}

void SelfAttention::input_backward(int i, const at::Tensor& dinput_C, const InputRows& x,
                                   const SavedStep* saved, at::Tensor* dx_CD) const {
  const Projection projection = this->projection(i);
  at::Tensor dheads =
      heads_backward(projection, dinput_C.narrow(2, 0, projection.head_dim), x, saved);
  if (projection.gate_dim > 0) {
    const at::Tensor dgate = dinput_C.narrow(2, projection.head_dim, projection.gate_dim);
    dheads = at::cat({dheads, dgate}, 2);
  }
  const at::Tensor dy_CO = dheads.flatten(1);
  projection.linear.for_rows(x.rows.begin, x.rows.size).backward(dy_CO, x.x_CD, dx_CD);
}

at::Tensor SelfAttention::mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const {
  const AttentionSpec& attention = spec_.attention;
  const auto attend = [&](const at::Tensor& q_TNK) {
    return row.attention->attend({q_TNK, inputs[1], inputs[2], as_input(weights_.sinks_N)},
                                 attention, row.packing, row.checkpoint);
  };
  if (!spec_.output_gate) return attend(inputs[0]);
  const auto [q_TNK, gate_TNV] = split_heads(inputs[0], attention.key_dim);
  return gated(attend(q_TNK), gate_TNV);
}

std::optional<TokenMixer::Overlap> SelfAttention::overlap() const {
  // The output's product in 8 bits needs a token's whole input.
  if (spec_.output_gate || output_.eight_bits.defined()) return std::nullopt;
  return Overlap{spec_.attention, &output_, weights_.sinks_N};
}

at::Tensor SelfAttention::plain(const at::Tensor& x_TD, const RowContext& row) const {
  const AttentionSpec& attention = spec_.attention;
  const int64_t T = x_TD.size(0);
  std::vector<at::Tensor> inputs;
  at::Tensor gate_TNV;
  for (int i = 0; i < kNumInputs; ++i) {
    const Projection projection = this->projection(i);
    at::Tensor x =
        plain_linear(projection.linear, x_TD).view({T, projection.num_heads, projection.row_dim()});
    if (projection.gate_dim > 0) gate_TNV = x.narrow(2, projection.head_dim, projection.gate_dim);
    x = x.narrow(2, 0, projection.head_dim);
    if (projection.norm_H.defined()) {
      x = plain_norm(x, projection.norm_H, norm_.kind, norm_.eps);
    }
    if (projection.is_rotated) x = plain_rotation(x, row.rotary.at(rotary_));
    inputs.push_back(x);
  }
  at::Tensor mixed_TNV = plain_softmax_attention(inputs[0], inputs[1], inputs[2], attention,
                                                 row.packing, weights_.sinks_N);
  if (gate_TNV.defined()) mixed_TNV = mixed_TNV * at::sigmoid(gate_TNV);
  return plain_linear(output_, mixed_TNV.flatten(1));
}

std::shared_ptr<const TokenMixer> make_token_mixer(const SelfAttentionSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights) {
  size_t rotary = 0;
  if (const std::optional<RotaryKind> kind = rotary_in(spec)) {
    const std::vector<RotaryKind> kinds = rotary_kinds_of(model);
    rotary = static_cast<size_t>(std::ranges::find(kinds, *kind) - kinds.begin());
  }
  SelfAttention::Weights own{weights.linear("self_attn.q_proj"),
                             weights.linear("self_attn.k_proj"),
                             weights.linear("self_attn.v_proj"),
                             weights.linear("self_attn.o_proj"),
                             {},
                             {}};
  if (spec.attention.has_sinks) own.sinks_N = weights.tensor("self_attn.sinks");
  if (spec.qk_norm) {
    own.q_norm_K = weights.norm("self_attn.q_norm");
    own.k_norm_K = weights.norm("self_attn.k_norm");
  }
  return std::make_shared<SelfAttention>(
      spec, std::move(own), SelfAttention::Norm{model.norm_kind, model.norm_eps}, rotary);
}

}  // namespace longspan
