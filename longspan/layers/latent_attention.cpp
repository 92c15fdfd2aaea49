#include "longspan/layers/latent_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "longspan/attention/latent_keys.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/layers/plain_steps.h"

namespace longspan {
namespace {

constexpr int kQueries = 0, kLatent = 1;

/// Makes keys and values of any tokens' latents by kv_b.
class ExpandedKeys : public LatentKeys {
 public:
  /// `kv_b_proj`: restricted to these heads.
  ExpandedKeys(const LatentAttentionSpec& spec, int64_t num_heads, Linear kv_b_proj)
      : spec_(spec), num_heads_(num_heads), kv_b_proj_(std::move(kv_b_proj)) {}

  Heads expand(const at::Tensor& x_SJ) const override {
    const int64_t S = x_SJ.size(0), N = num_heads_, R = spec_.rope_dim;
    const at::Tensor heads_SNE =
        kv_b_proj_.forward(latent(x_SJ)).view({S, N, spec_.expanded_dim()});
    const at::Tensor rotated_SNR = x_SJ.narrow(1, spec_.kv_rank, R).unsqueeze(1).expand({S, N, R});
    return {at::cat({heads_SNE.narrow(2, 0, spec_.nope_dim()), rotated_SNR}, 2),
            heads_SNE.narrow(2, spec_.nope_dim(), spec_.attention.value_dim)
                .clone(at::MemoryFormat::Contiguous)};
  }

  at::Tensor backward(const at::Tensor& x_SJ, const Heads& gradients) const override {
    const int64_t P = spec_.nope_dim();
    const at::Tensor dheads_SO =
        at::cat({gradients.k_SMH.narrow(2, 0, P), gradients.v_SMH}, 2).flatten(1);
    kv_b_proj_.add_gradients(dheads_SO, latent(x_SJ));
    return at::cat(
        {kv_b_proj_.input_gradient(dheads_SO), gradients.k_SMH.narrow(2, P, spec_.rope_dim).sum(1)},
        1);
  }

  std::shared_ptr<const LatentKeys> of_heads(int64_t begin, int64_t count) const override {
    const int64_t E = spec_.expanded_dim();
    return std::make_shared<ExpandedKeys>(spec_, count,
                                          kv_b_proj_.for_outputs(begin * E, count * E));
  }

  std::vector<at::Tensor> parameters() const override { return kv_b_proj_.parameters(); }

 private:
  at::Tensor latent(const at::Tensor& x_SJ) const {
    return x_SJ.narrow(1, 0, spec_.kv_rank).contiguous();
  }

  LatentAttentionSpec spec_;
  int64_t num_heads_;
  Linear kv_b_proj_;
};

}  // namespace

LatentAttention::LatentAttention(const LatentAttentionSpec& spec, Weights weights,
                                 NormKind norm_kind, size_t rotary)
    : ProjectedMixer(std::exchange(weights.o_proj, {})),
      spec_(spec),
      weights_(std::move(weights)),
      norm_kind_(norm_kind),
      rotary_(rotary) {}

std::unique_ptr<TokenMixer> LatentAttention::clone() const {
  return std::make_unique<LatentAttention>(*this);
}

std::vector<Linear*> LatentAttention::linears_before() {
  if (!spec_.query_rank) return {&weights_.q_proj, &weights_.kv_a_proj, &weights_.kv_b_proj};
  return {&weights_.q_a_proj, &weights_.q_b_proj, &weights_.kv_a_proj, &weights_.kv_b_proj};
}

std::vector<at::Tensor> LatentAttention::parameters_before() const {
  std::vector<at::Tensor> parameters{weights_.q_a_norm_Q, weights_.kv_a_norm_L};
  append_parameters(parameters, {&weights_.kv_a_proj, &weights_.kv_b_proj});
  if (spec_.query_rank) {
    append_parameters(parameters, {&weights_.q_a_proj, &weights_.q_b_proj});
  } else {
    append_parameters(parameters, {&weights_.q_proj});
  }
  return parameters;
}

at::Tensor LatentAttention::empty_input(int i, int64_t num_rows,
                                        const at::TensorOptions& options) const {
  if (i == kLatent) return at::empty({num_rows, spec_.latent_dim()}, options);
  return at::empty({num_rows, spec_.attention.num_heads, spec_.attention.key_dim}, options);
}

LatentAttention::Normed LatentAttention::normed(at::Tensor x_CL, const at::Tensor& norm_L) const {
  Normed all{std::move(x_CL), {}, {}};
  all.rstd_C = reciprocal_rms(all.before_CL, spec_.norm_eps);
  all.after_CL = scale_rows(all.before_CL, all.rstd_C, norm_factors(norm_L, norm_kind_),
                            all.before_CL.scalar_type());
  return all;
}

at::Tensor LatentAttention::norm_backward_of(const at::Tensor& dafter_CL, const Normed& normed,
                                             const at::Tensor& norm_L) const {
  const at::Tensor dnorm_L = zeros_for_norm(norm_L, normed.rstd_C.options());
  at::Tensor dbefore_CL = norm_backward(dafter_CL, normed.before_CL, normed.rstd_C,
                                        norm_factors(norm_L, norm_kind_), {}, dnorm_L);
  if (dnorm_L.defined()) add_gradient(norm_L, dnorm_L);
  return dbefore_CL;
}

void LatentAttention::rotate_last_(const at::Tensor& x_CNK, const RowRange& rows,
                                   const RowContext& row, bool inverse) const {
  const at::Tensor last = x_CNK.narrow(2, x_CNK.size(2) - spec_.rope_dim, spec_.rope_dim);
  at::Tensor rotated = last.clone(at::MemoryFormat::Contiguous);
  rotate_(rotated, row.rotary.at(rotary_).of_rows(rows.begin, rows.size), inverse);
  last.copy_(rotated);
}

at::Tensor LatentAttention::input(int i, at::Tensor room, const InputRows& x,
                                  SavedStep* saved) const {
  const auto& [x_CD, rows, row] = x;
  const auto of_rows = [&range = x.rows](const Linear& linear) {
    return linear.for_rows(range.begin, range.size);
  };
  if (i == kQueries) {
    if (spec_.query_rank) {
      const Normed latent = normed(of_rows(weights_.q_a_proj).forward(x_CD), weights_.q_a_norm_Q);
      if (saved != nullptr) *saved = {latent.before_CL};
      of_rows(weights_.q_b_proj).forward_out(room.flatten(1), latent.after_CL);
    } else {
      of_rows(weights_.q_proj).forward_out(room.flatten(1), x_CD);
    }
    rotate_last_(room, rows, row, /*inverse=*/false);
    return room;
  }
  of_rows(weights_.kv_a_proj).forward_out(room, x_CD);
  const at::Tensor c_CL = room.narrow(1, 0, spec_.kv_rank);
  const Normed latent = normed(c_CL.clone(at::MemoryFormat::Contiguous), weights_.kv_a_norm_L);
  if (saved != nullptr) *saved = {latent.before_CL};
  c_CL.copy_(latent.after_CL);
  rotate_last_(room.unsqueeze(1), rows, row, /*inverse=*/false);
  return room;
}

void LatentAttention::query_backward(const at::Tensor& dq_CNK, const InputRows& x,
                                     const SavedStep* saved, at::Tensor* dx_CD) const {
  const auto& [x_CD, rows, row] = x;
  const auto of_rows = [&range = x.rows](const Linear& linear) {
    return linear.for_rows(range.begin, range.size);
  };
  const at::Tensor dq = dq_CNK.clone(at::MemoryFormat::Contiguous);
  rotate_last_(dq, rows, row, /*inverse=*/true);
  const at::Tensor dy_CO = dq.flatten(1);
  if (!spec_.query_rank) return of_rows(weights_.q_proj).backward(dy_CO, x_CD, dx_CD);
  const Linear q_a = of_rows(weights_.q_a_proj), q_b = of_rows(weights_.q_b_proj);
  const Normed latent =
      normed(saved != nullptr ? (*saved)[0] : q_a.forward(x_CD), weights_.q_a_norm_Q);
  at::Tensor dlatent_CQ;
  q_b.backward(dy_CO, latent.after_CL, &dlatent_CQ);
  q_a.backward(norm_backward_of(dlatent_CQ, latent, weights_.q_a_norm_Q), x_CD, dx_CD);
}

void LatentAttention::latent_backward(const at::Tensor& dlatent_CJ, const InputRows& x,
                                      const SavedStep* saved, at::Tensor* dx_CD) const {
  const auto& [x_CD, rows, row] = x;
  const Linear kv_a = weights_.kv_a_proj.for_rows(rows.begin, rows.size);
  const at::Tensor c_CL =
      saved != nullptr ? (*saved)[0] : kv_a.forward(x_CD).narrow(1, 0, spec_.kv_rank).contiguous();
  const Normed latent = normed(c_CL, weights_.kv_a_norm_L);
  const at::Tensor dy_CJ = dlatent_CJ.clone(at::MemoryFormat::Contiguous);
  rotate_last_(dy_CJ.unsqueeze(1), rows, row, /*inverse=*/true);
  const at::Tensor dc_CL = dy_CJ.narrow(1, 0, spec_.kv_rank);
  dc_CL.copy_(norm_backward_of(dc_CL.contiguous(), latent, weights_.kv_a_norm_L));
  kv_a.backward(dy_CJ, x_CD, dx_CD);
}

void LatentAttention::input_backward(int i, const at::Tensor& dinput_C, const InputRows& x,
                                     const SavedStep* saved, at::Tensor* dx_CD) const {
  if (i == kQueries) return query_backward(dinput_C, x, saved, dx_CD);
  latent_backward(dinput_C, x, saved, dx_CD);
}

at::Tensor LatentAttention::mix(const std::vector<at::Tensor>& inputs,
                                const RowContext& row) const {
  const auto keys =
      std::make_shared<ExpandedKeys>(spec_, spec_.attention.num_heads, weights_.kv_b_proj);
  if (weights_.kv_b_proj.dropout.active()) {  // dropout has keys only for the tokens here
    const LatentKeys::Heads heads = expanded(inputs[kLatent], keys);
    return row.attention->attend({inputs[kQueries], heads.k_SMH, heads.v_SMH}, spec_.attention,
                                 row.packing, row.checkpoint);
  }
  return row.attention->attend_latent(inputs[kQueries], inputs[kLatent], keys, spec_.attention,
                                      row.packing, row.checkpoint);
}

at::Tensor LatentAttention::plain(const at::Tensor& x_TD, const RowContext& row) const {
  const AttentionSpec& attention = spec_.attention;
  const int64_t T = x_TD.size(0), N = attention.num_heads, R = spec_.rope_dim;
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return plain_norm(x, weight, norm_kind_, spec_.norm_eps);
  };
  const auto rotated = [&](const at::Tensor& x_TNR) {
    return plain_rotation(x_TNR, row.rotary.at(rotary_));
  };
  const at::Tensor q_TNK =
      (spec_.query_rank
           ? plain_linear(weights_.q_b_proj,
                          norm(plain_linear(weights_.q_a_proj, x_TD), weights_.q_a_norm_Q))
           : plain_linear(weights_.q_proj, x_TD))
          .view({T, N, attention.key_dim});
  const at::Tensor latent_TJ = plain_linear(weights_.kv_a_proj, x_TD);
  const at::Tensor heads_TNE =
      plain_linear(weights_.kv_b_proj,
                   norm(latent_TJ.narrow(1, 0, spec_.kv_rank), weights_.kv_a_norm_L))
          .view({T, N, spec_.expanded_dim()});
  const int64_t P = spec_.nope_dim();
  const at::Tensor shared_T1R = rotated(latent_TJ.narrow(1, spec_.kv_rank, R).unsqueeze(1));
  const at::Tensor q = at::cat({q_TNK.narrow(2, 0, P), rotated(q_TNK.narrow(2, P, R))}, 2);
  const at::Tensor k = at::cat({heads_TNE.narrow(2, 0, P), shared_T1R.expand({T, N, R})}, 2);
  const at::Tensor v = heads_TNE.narrow(2, P, attention.value_dim);
  const at::Tensor mixed_TNV = plain_softmax_attention(q, k, v, attention, row.packing, {});
  return plain_linear(output_, mixed_TNV.flatten(1));
}

std::shared_ptr<const TokenMixer> make_token_mixer(const LatentAttentionSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights) {
  const std::vector<RotaryKind> kinds = rotary_kinds_of(model);
  const auto rotary =
      static_cast<size_t>(std::ranges::find(kinds, *rotary_in(spec)) - kinds.begin());
  const std::string module = "self_attn.";
  LatentAttention::Weights own;
  if (spec.query_rank) {
    own.q_a_proj = weights.linear(module + "q_a_proj");
    own.q_a_norm_Q = weights.norm(module + "q_a_layernorm");
    own.q_b_proj = weights.linear(module + "q_b_proj");
  } else {
    own.q_proj = weights.linear(module + "q_proj");
  }
  own.kv_a_proj = weights.linear(module + "kv_a_proj_with_mqa");
  own.kv_a_norm_L = weights.norm(module + "kv_a_layernorm");
  own.kv_b_proj = weights.linear(module + "kv_b_proj");
  own.o_proj = weights.linear(module + "o_proj");
  return std::make_shared<LatentAttention>(spec, std::move(own), model.norm_kind, rotary);
}

}  // namespace longspan
