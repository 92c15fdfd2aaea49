#include "longspan/testing/plain_model.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <variant>

#include "longspan/kernels/rope.h"
#include "longspan/models/model_config.h"
#include "longspan/testing/parameter_specs.h"

namespace longspan::testing {

ModelSpec small_model(bool tied, bool biases) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.tie_word_embeddings = tied;
  config.qkv_bias = config.output_bias = config.mlp_bias = biases;
  config.rms_norm_eps = 1e-3;
  return spec_of(config);
}

std::vector<NamedTensor> random_leaves(const ModelSpec& spec) {
  at::manual_seed(11);
  std::vector<NamedTensor> parameters;
  for (const auto& [name, shape] : parameter_shapes(spec)) {
    auto tensor = at::randn(shape, at::kDouble) * 0.3;
    if (name.ends_with("norm.weight")) tensor = tensor + 1;
    parameters.push_back({name, tensor.requires_grad_(true)});
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

at::Tensor plain_logprobs(const ModelSpec& spec, const std::vector<NamedTensor>& parameters,
                          const Batch& batch) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : parameters) weights[name] = tensor;
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    const auto bias = weights.find(name + ".bias");
    const auto y = at::matmul(x, weights.at(name + ".weight").t());
    return bias == weights.end() ? y : y + bias->second;
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor weight = weights.at(name + ".weight");
    return x * (x.square().mean(-1, true) + spec.norm_eps).rsqrt() *
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
    const auto& mixer = std::get<SelfAttentionSpec>(spec.layer(layer).mixer);
    const int64_t N = mixer.attention.num_heads, groups = N / mixer.attention.num_kv_heads;
    const int64_t K = mixer.attention.key_dim, V = mixer.attention.value_dim;
    at::Tensor gate;
    const auto x = norm(h, prefix + "input_layernorm");
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
    const auto scores = at::matmul(q.transpose(0, 1), k.permute({1, 2, 0})) * mixer.attention.scale;
    auto out = at::matmul((scores + mask).softmax(-1), v.transpose(0, 1)).transpose(0, 1);
    if (gate.defined()) out = out * gate;
    h = h + linear(out.flatten(1), prefix + "self_attn.o_proj");
    const auto y = norm(h, prefix + "post_attention_layernorm");
    const auto gate = linear(y, prefix + "mlp.gate_proj");
    h = h +
        linear(gate * gate.sigmoid() * linear(y, prefix + "mlp.up_proj"), prefix + "mlp.down_proj");
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
    // Softmax does not see a bias of the keys: exactly 0 up to rounding. The rotation makes it not
    // quite so, hence a bound beside the relative one.
    CHECK(at::allclose(ours.at(name), expected, tolerance, 1e-12));
  }
}

}  // namespace longspan::testing
