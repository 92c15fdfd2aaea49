#include "longspan/testing/plain_model.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "longspan/kernels/rope.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/small_model.h"

namespace longspan::testing {

ModelSpec small_model(bool tied, bool biases) {
  testing::SmallModel config;
  config.model_type = "llama";
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.tied_head = tied;
  config.qkv_bias = config.output_bias = config.mlp_bias = biases;
  config.norm_eps = 1e-3;
  return config.spec();
}

std::vector<NamedTensor> random_leaves(const ModelSpec& spec) {
  at::manual_seed(11);
  std::vector<NamedTensor> parameters;
  for (const ParameterSpec& parameter : parameters_of(spec)) {
    auto tensor = at::randn(parameter.shape, at::kDouble) * 0.3;
    if (parameter.role == ParameterRole::kNorm) tensor = tensor + 1;
    parameters.push_back({parameter.name, tensor.requires_grad_(!is_buffer(parameter.role))});
  }
  return parameters;
}

Batch random_batch(const ModelSpec& spec, const std::vector<int64_t>& lengths,
                   double share_of_labels) {
  at::manual_seed(12);
  Batch batch;
  batch.packing = Packing::from_lengths(lengths);
  const int64_t T = batch.packing.num_tokens();
  batch.tokens_T = at::randint(spec.vocab_size, {T}, at::kLong);
  batch.labels_T = at::randint(spec.vocab_size, {T}, at::kLong);
  batch.labels_T.masked_fill_(at::rand({T}).ge(share_of_labels), kIgnoreLabel);
  std::vector<at::Tensor> positions, documents;
  for (size_t i = 0; i < lengths.size(); ++i) {
    positions.push_back(at::arange(lengths[i], at::kLong));
    documents.push_back(at::full({lengths[i]}, static_cast<int64_t>(i), at::kLong));
  }
  batch.positions_T = at::cat(positions);
  batch.documents_T = at::cat(documents);
  return batch;
}

namespace {

template <typename... Functions>
struct ByKind : Functions... {
  using Functions::operator()...;
};

at::Tensor plain_scores(RouterSpec::Scores scores, const at::Tensor& logits_TE) {
  switch (scores) {
    case RouterSpec::Scores::kSoftmax:
    case RouterSpec::Scores::kSoftmaxOfChosen:
      return logits_TE.softmax(1);
    case RouterSpec::Scores::kSigmoid:
      return logits_TE.sigmoid();
  }
  throw std::logic_error("no scores of a router");
}

/// Returns the weights of each token's experts, 0 for those not chosen, [T, E].
at::Tensor expert_weights(const MixtureOfExpertsSpec& experts, const at::Tensor& logits_TE,
                          const at::Tensor& bias_E) {
  const RouterSpec& router = experts.router;
  const auto scores_TE = plain_scores(router.scores, logits_TE);
  // A softmax over the chosen logits is the full softmax divided by the sum over the chosen.
  const bool normalises = router.normalises || traits_of(router.scores).by_chosen_logits;
  const int64_t T = scores_TE.size(0), E = experts.num_experts, M = E / router.num_groups;
  const auto chosen_TE = at::zeros({T, E}, at::kDouble);
  for (int64_t t = 0; t < T; ++t) {
    const at::Tensor choice = (scores_TE[t] + bias_E).detach().contiguous();
    const double* const by = choice.const_data_ptr<double>();
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < router.num_groups; ++g) {
      std::vector<double> own(by + g * M, by + (g + 1) * M);
      std::sort(own.rbegin(), own.rend());
      groups.emplace_back(own[0] + (M > 1 ? own[1] : 0.0), g);
    }
    std::sort(groups.rbegin(), groups.rend());
    std::vector<std::pair<double, int64_t>> open;
    for (int64_t i = 0; i < router.groups_per_token; ++i) {
      for (int64_t e = groups[i].second * M; e < (groups[i].second + 1) * M; ++e) {
        open.emplace_back(by[e], e);
      }
    }
    std::sort(open.rbegin(), open.rend());
    for (int64_t i = 0; i < experts.experts_per_token; ++i) chosen_TE[t][open[i].second] = 1.0;
  }
  auto weights_TE = scores_TE * chosen_TE;
  if (normalises) weights_TE = weights_TE / (weights_TE.sum(1, true) + router.epsilon);
  return weights_TE * router.scale;
}

}  // namespace

at::Tensor plain_logprobs(const ModelSpec& spec, const std::vector<NamedTensor>& parameters,
                          const Batch& batch) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : parameters) weights[name] = tensor;
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    const auto bias = weights.find(name + ".bias");
    const auto y = at::matmul(x, weights.at(name + ".weight").t());
    return bias == weights.end() ? y : y + bias->second;
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name,
                        std::optional<double> eps = {}) {
    const at::Tensor weight = weights.at(name + ".weight");
    return x * (x.square().mean(-1, true) + eps.value_or(spec.norm_eps)).rsqrt() *
           (spec.norm_kind == NormKind::kWeight ? weight : 1 + weight);
  };
  const int64_t T = batch.tokens_T.size(0);
  const auto rotate = [&](const at::Tensor& x, const RotaryKind& kind) {
    const auto table = rotary_table(rotary_frequencies(kind), batch.positions_T, at::kDouble);
    const auto cos = at::cat({table.cos_TF, table.cos_TF}, 1).unsqueeze(1);
    const auto sin = at::cat({-table.sin_TF, table.sin_TF}, 1).unsqueeze(1);
    const auto turned = x.narrow(2, 0, kind.dim);
    return at::cat({turned * cos + at::roll(turned, kind.dim / 2, -1) * sin,
                    x.narrow(2, kind.dim, x.size(2) - kind.dim)},
                   2);
  };
  auto mask = at::zeros({T, T}, at::kDouble).fill_(-INFINITY);
  for (int64_t d = 0; d < batch.packing.num_documents(); ++d) {
    for (int64_t i = batch.packing.begin(d); i < batch.packing.end(d); ++i) {
      mask[i].slice(0, batch.packing.begin(d), i + 1).zero_();
    }
  }
  auto h = at::embedding(weights.at("model.embed_tokens.weight"), batch.tokens_T,
                         spec.padding_token.value_or(-1));
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const auto x = norm(h, prefix + "input_layernorm");
    const auto attend = [&](const at::Tensor& q_TNK, const at::Tensor& k_TNK,
                            const at::Tensor& v_TNV, double scale) {
      const auto scores = at::matmul(q_TNK.transpose(0, 1), k_TNK.permute({1, 2, 0})) * scale;
      return at::matmul((scores + mask).softmax(-1), v_TNV.transpose(0, 1)).transpose(0, 1);
    };
    const auto self_attention = [&](const SelfAttentionSpec& mixer) {
      const int64_t N = mixer.attention.num_heads, groups = N / mixer.attention.num_kv_heads;
      const int64_t K = mixer.attention.key_dim, V = mixer.attention.value_dim;
      at::Tensor gate;
      const auto heads = [&](const std::string& name) {
        auto y = linear(x, prefix + "self_attn." + name + "_proj");
        if (name == "q" && mixer.output_gate) {
          y = y.view({T, N, K + V});
          gate = y.narrow(2, K, V).sigmoid();
          y = y.narrow(2, 0, K);
        } else {
          y = y.view({T, -1, K});
        }
        if (mixer.qk_norm) y = norm(y, prefix + "self_attn." + name + "_norm");
        return mixer.rotary ? rotate(y, *rotary_in(mixer)) : y;
      };
      const auto q = heads("q"), k = heads("k").repeat_interleave(groups, 1);
      const auto v = linear(x, prefix + "self_attn.v_proj")
                         .view({T, -1, mixer.attention.value_dim})
                         .repeat_interleave(groups, 1);
      const auto out = attend(q, k, v, mixer.attention.scale);
      return gate.defined() ? out * gate : out;
    };
    const auto latent_attention = [&](const LatentAttentionSpec& mixer) {
      const std::string module = prefix + "self_attn.";
      const int64_t N = mixer.attention.num_heads, P = mixer.nope_dim(), R = mixer.rope_dim;
      const auto normed = [&](const at::Tensor& y, const std::string& name) {
        return norm(y, module + name, mixer.norm_eps);
      };
      const auto q =
          (mixer.query_rank ? linear(normed(linear(x, module + "q_a_proj"), "q_a_layernorm"),
                                     module + "q_b_proj")
                            : linear(x, module + "q_proj"))
              .view({T, N, P + R});
      const auto latent = linear(x, module + "kv_a_proj_with_mqa");
      const auto heads =
          linear(normed(latent.narrow(1, 0, mixer.kv_rank), "kv_a_layernorm"), module + "kv_b_proj")
              .view({T, N, mixer.expanded_dim()});
      const auto shared =
          rotate(latent.narrow(1, mixer.kv_rank, R).unsqueeze(1), *rotary_in(mixer));
      const auto turned = rotate(q.narrow(2, P, R), *rotary_in(mixer));
      return attend(at::cat({q.narrow(2, 0, P), turned}, 2),
                    at::cat({heads.narrow(2, 0, P), shared.expand({T, N, R})}, 2),
                    heads.narrow(2, P, mixer.attention.value_dim), mixer.attention.scale);
    };
    const auto recurrence = [](const GatedDeltaNetSpec&) -> at::Tensor {
      throw std::logic_error("recurrent layers are not written here");
    };
    const at::Tensor out =
        std::visit(ByKind{self_attention, latent_attention, recurrence}, spec.layer(layer).mixer);
    h = h + linear(out.flatten(1), prefix + "self_attn.o_proj");
    const auto y = norm(h, prefix + "post_attention_layernorm");
    const auto gated_mlp = [&](const std::string& name) {
      const auto gate = linear(y, name + ".gate_proj");
      return linear(gate * gate.sigmoid() * linear(y, name + ".up_proj"), name + ".down_proj");
    };
    const auto mixture = [&](const MixtureOfExpertsSpec& experts) {
      const auto weights_TE =
          expert_weights(experts, linear(y, prefix + "mlp.gate"),
                         experts.router.has_correction_bias
                             ? weights.at(prefix + "mlp.gate.e_score_correction_bias")
                             : at::zeros({experts.num_experts}, at::kDouble));
      for (int64_t e = 0; e < experts.num_experts; ++e) {
        h = h + weights_TE.select(1, e).unsqueeze(1) *
                    gated_mlp(fmt::format("{}mlp.experts.{}", prefix, e));
      }
      if (!experts.has_shared()) return;
      const std::string shared = prefix + "mlp." + experts.shared.name;
      const auto part = gated_mlp(shared);
      h = h + (experts.shared.is_gated ? linear(y, shared + "_gate").sigmoid() * part : part);
    };
    const auto dense = [&](const GatedMlpSpec&) { h = h + gated_mlp(prefix + "mlp"); };
    std::visit(ByKind{mixture, dense}, spec.layer(layer).feed_forward);
  }
  const auto& head =
      spec.tied_head ? weights.at("model.embed_tokens.weight") : weights.at("lm_head.weight");
  const auto logprobs = at::matmul(norm(h, "model.norm"), head.t()).log_softmax(-1);
  const auto rows = batch.labels_T.ne(kIgnoreLabel).nonzero().squeeze(1);
  return logprobs.index_select(0, rows)
      .gather(1, batch.labels_T.index_select(0, rows).unsqueeze(1))
      .squeeze(1);
}

std::map<std::string, at::Tensor> take_gradients(const std::vector<NamedTensor>& parameters) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.grad().defined()) gradients[name] = tensor.grad().clone();
    tensor.mutable_grad().reset();
  }
  return gradients;
}

void check_equal(const std::map<std::string, at::Tensor>& ours,
                 const std::map<std::string, at::Tensor>& theirs, double tolerance) {
  CHECK(ours.size() == theirs.size());
  for (const auto& [name, expected] : theirs) {
    INFO(name);
    REQUIRE(ours.contains(name));
    // Softmax is invariant to a bias of the keys, up to rounding, and up to the rotation; hence an
    // absolute bound in addition to the relative one.
    CHECK(at::allclose(ours.at(name), expected, tolerance, 1e-12));
  }
}

}  // namespace longspan::testing
