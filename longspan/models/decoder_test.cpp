// The decoder against the same model written plainly in ATen's operators, in fp64 with autograd's
// own gradients, where nothing but a mistake can differ by more than rounding.
#include "longspan/models/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>

#include "longspan/attention/block_kernel.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/user_error.h"
#include "longspan/data/shared_prompt.h"
#include "longspan/models/linear_cross_entropy.h"
#include "longspan/models/rope.h"
#include "longspan/objectives/sft.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

ModelConfig small_config(bool tied, bool biases) {
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
  return config;
}

/// Everything random and large enough to matter; leaves that want gradients.
std::vector<NamedTensor> random_leaves(const ModelConfig& config) {
  at::manual_seed(11);
  std::vector<NamedTensor> parameters;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    auto tensor = at::randn(shape, at::kDouble) * 0.3;
    if (name.ends_with("norm.weight")) tensor = tensor + 1;
    parameters.push_back({name, tensor.requires_grad_(true)});
  }
  return parameters;
}

Batch random_batch(const ModelConfig& config, const std::vector<int64_t>& lengths,
                   double share_of_labels) {
  at::manual_seed(12);
  Batch batch;
  batch.packing = Packing::from_lengths(lengths);
  const int64_t T = batch.packing.num_tokens();
  batch.tokens_T = at::randint(config.vocab_size, {T}, at::kLong);
  batch.labels_T = at::randint(config.vocab_size, {T}, at::kLong);
  batch.labels_T.masked_fill_(at::rand({T}).ge(share_of_labels), kIgnoreLabel);
  std::vector<at::Tensor> positions;
  for (const int64_t length : lengths) positions.push_back(at::arange(length, at::kLong));
  batch.positions_T = at::cat(positions);
  return batch;
}

/// log p of each label by plain operators.
at::Tensor plain_logprobs(const ModelConfig& config, const std::vector<NamedTensor>& parameters,
                          const Batch& batch) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : parameters) weights[name] = tensor;
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    const auto bias = weights.find(name + ".bias");
    const auto y = at::matmul(x, weights.at(name + ".weight").t());
    return bias == weights.end() ? y : y + bias->second;
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x * (x.square().mean(-1, true) + config.rms_norm_eps).rsqrt() *
           weights.at(name + ".weight");
  };
  const int64_t T = batch.tokens_T.size(0), H = config.head_dim, N = config.num_heads;
  const auto table = rotary_table(rotary_frequencies(config), batch.positions_T, at::kDouble);
  const auto rotate = [&](const at::Tensor& x) {
    const auto cos = at::cat({table.cos_TF, table.cos_TF}, 1).unsqueeze(1);
    const auto sin = at::cat({-table.sin_TF, table.sin_TF}, 1).unsqueeze(1);
    return x * cos + at::roll(x, H / 2, -1) * sin;
  };
  auto mask = at::zeros({T, T}, at::kDouble).fill_(-INFINITY);
  for (int64_t d = 0; d < batch.packing.num_documents(); ++d) {
    for (int64_t i = batch.packing.begin(d); i < batch.packing.end(d); ++i) {
      mask[i].slice(0, batch.packing.begin(d), i + 1).zero_();
    }
  }
  auto h = at::embedding(weights.at("model.embed_tokens.weight"), batch.tokens_T,
                         config.padding_token.value_or(-1));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const auto x = norm(h, prefix + "input_layernorm");
    const int64_t groups = N / config.num_kv_heads;
    const auto q = rotate(linear(x, prefix + "self_attn.q_proj").view({T, N, H}));
    const auto k = rotate(linear(x, prefix + "self_attn.k_proj").view({T, -1, H}))
                       .repeat_interleave(groups, 1);
    const auto v =
        linear(x, prefix + "self_attn.v_proj").view({T, -1, H}).repeat_interleave(groups, 1);
    const auto scores =
        at::matmul(q.transpose(0, 1), k.permute({1, 2, 0})) / std::sqrt(static_cast<double>(H));
    const auto out = at::matmul((scores + mask).softmax(-1), v.transpose(0, 1)).transpose(0, 1);
    h = h + linear(out.reshape({T, N * H}), prefix + "self_attn.o_proj");
    const auto y = norm(h, prefix + "post_attention_layernorm");
    const auto gate = linear(y, prefix + "mlp.gate_proj");
    h = h +
        linear(gate * gate.sigmoid() * linear(y, prefix + "mlp.up_proj"), prefix + "mlp.down_proj");
  }
  const auto& head = config.tie_word_embeddings ? weights.at("model.embed_tokens.weight")
                                                : weights.at("lm_head.weight");
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
                 const std::map<std::string, at::Tensor>& theirs, double tolerance = 1e-11) {
  CHECK(ours.size() == theirs.size());
  for (const auto& [name, expected] : theirs) {
    INFO(name);
    REQUIRE(ours.contains(name));
    // Softmax does not see a bias of the keys: exactly 0 up to rounding. The rotation makes it not
    // quite so, hence a bound beside the relative one.
    CHECK(at::allclose(ours.at(name), expected, tolerance, 1e-12));
  }
}

TEST_CASE("decoder: log probabilities and all gradients are those of the plain model") {
  const auto attention = make_local(cpu_block_kernel());
  for (const bool tied : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      for (const double share : {1.0, 0.3}) {
        CAPTURE(tied);
        CAPTURE(checkpointing);
        CAPTURE(share);
        auto config = small_config(tied, /*biases=*/tied);
        const auto parameters = random_leaves(config);
        const auto batch = random_batch(config, {9, 1, 14}, share);
        config.padding_token = batch.tokens_T[3].item<int64_t>();
        Decoder model(config, parameters, *attention, {checkpointing, at::kFloat});

        const auto expected = plain_logprobs(config, parameters, batch);
        const auto upstream = at::randn(expected.sizes(), at::kDouble);
        torch::autograd::backward({(expected * upstream).sum()}, {});
        const auto expected_gradients = take_gradients(parameters);
        const auto logprobs = model.token_logprobs(batch);
        CHECK(relative_error(logprobs, expected) < 1e-12);
        torch::autograd::backward({(logprobs * upstream).sum()}, {});
        check_equal(take_gradients(parameters), expected_gradients);

        torch::autograd::backward({-plain_logprobs(config, parameters, batch).sum() / 7}, {});
        const auto expected_sum_gradients = take_gradients(parameters);
        const auto loss = sft_loss(model, batch, 7);
        CHECK(relative_error(loss, -expected.sum() / 7) < 1e-12);
        torch::autograd::backward({loss}, {});
        check_equal(take_gradients(parameters), expected_sum_gradients);

        // A second micro-batch adds to what is there.
        torch::autograd::backward({sft_loss(model, batch, 14)}, {});
        torch::autograd::backward({sft_loss(model, batch, 14)}, {});
        check_equal(take_gradients(parameters), expected_sum_gradients);
      }
    }
  }
}

/// A prompt that both begin with, then an answer each, all random; answers begin alike for
/// `num_alike` tokens.
Example random_pair(const ModelConfig& config, int64_t prompt, int64_t chosen, int64_t rejected,
                    int64_t num_alike = 0) {
  const auto tokens = [&](int64_t count) {
    const auto random = at::randint(config.vocab_size, {count}, at::kInt);
    const int32_t* data = random.const_data_ptr<int32_t>();
    return std::vector<int32_t>(data, data + count);
  };
  const auto prompt_tokens = tokens(prompt), alike = tokens(num_alike);
  Example pair;
  for (const int64_t answer : {chosen, rejected}) {
    Sample sample{prompt_tokens, std::vector<int32_t>(prompt, kIgnoreLabel)};
    auto answer_tokens = tokens(answer);
    std::copy(alike.begin(), alike.end(), answer_tokens.begin());
    for (auto* part : {&sample.input_ids, &sample.labels}) {
      part->insert(part->end(), answer_tokens.begin(), answer_tokens.end());
    }
    pair.documents.push_back(sample);
  }
  return pair;
}

TEST_CASE(
    "decoder: pairs that share their prompt have the log probabilities of pairs that do not") {
  const auto attention = make_local(cpu_block_kernel());
  const auto config = small_config(false, /*biases=*/true);
  const auto parameters = random_leaves(config);
  // Answers of one token; nothing to share; answers that begin alike.
  const std::vector<Example> pairs = {random_pair(config, 9, 6, 4), random_pair(config, 5, 1, 3),
                                      random_pair(config, 2, 4, 1), random_pair(config, 1, 4, 6),
                                      random_pair(config, 6, 5, 7, 2)};
  std::vector<const Example*> together;
  std::vector<const Sample*> apart;
  for (const Example& pair : pairs) {
    together.push_back(&pair);
    for (const Sample& document : pair.documents) apart.push_back(&document);
  }
  const Batch shared = collate_shared(together), unshared = collate(apart);
  CHECK(unshared.tokens_T.numel() - shared.tokens_T.numel() == 8 + 4 + 1 + 0 + 5);
  const auto at_labels = [](const Batch& batch, const at::Tensor& x_T) {
    return x_T.masked_select(batch.labels_T.ne(kIgnoreLabel));
  };
  CHECK(at_labels(shared, shared.labels_T).equal(at_labels(unshared, unshared.labels_T)));
  CHECK(at_labels(shared, shared.documents_T).equal(at_labels(unshared, unshared.documents_T)));
  CHECK(at_labels(shared, shared.positions_T).equal(at_labels(unshared, unshared.positions_T)));
  for (const bool checkpointing : {false, true}) {
    Decoder model(config, parameters, *attention, {checkpointing, at::kFloat});
    const auto expected = model.token_logprobs(unshared);
    const auto upstream = at::randn(expected.sizes(), at::kDouble);
    torch::autograd::backward({(expected * upstream).sum()}, {});
    const auto expected_gradients = take_gradients(parameters);
    const auto logprobs = model.token_logprobs(shared);
    CHECK(at::allclose(logprobs, expected, 1e-12, 1e-12));
    torch::autograd::backward({(logprobs * upstream).sum()}, {});
    check_equal(take_gradients(parameters), expected_gradients);
  }
}

TEST_CASE("decoder: gradients are those of finite differences") {
  const auto attention = make_local(cpu_block_kernel());
  const auto config = small_config(true, true);
  const auto parameters = random_leaves(config);
  const auto batch = random_batch(config, {6, 5}, 0.7);
  Decoder model(config, parameters, *attention, {true, at::kFloat});
  torch::autograd::backward({model.negative_log_likelihood_sum(batch)}, {});
  const auto gradients = take_gradients(parameters);
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters) {
    INFO(name);
    const auto direction = at::randn(tensor.sizes(), at::kDouble);
    const double step = 1e-5;
    tensor.add_(direction, step);
    const double above = model.negative_log_likelihood_sum(batch).item<double>();
    tensor.add_(direction, -2 * step);
    const double below = model.negative_log_likelihood_sum(batch).item<double>();
    tensor.add_(direction, step);
    const double expected = (above - below) / (2 * step);
    const double actual = (gradients.at(name) * direction).sum().item<double>();
    // The error of central differences: step^2 times third derivatives, and 1e-16 / step.
    CHECK(actual == doctest::Approx(expected).epsilon(1e-6).scale(1.0));
  }
}

TEST_CASE("decoder: frozen parameters get no gradient, the others the same as before") {
  const auto attention = make_local(cpu_block_kernel());
  const auto config = small_config(false, true);
  const auto parameters = random_leaves(config);
  const auto batch = random_batch(config, {9, 14}, 0.5);
  for (const bool checkpointing : {false, true}) {
    for (const auto& [name, tensor] : parameters) tensor.requires_grad_(true);
    Decoder model(config, parameters, *attention, {checkpointing, at::kFloat});
    torch::autograd::backward({model.negative_log_likelihood_sum(batch)}, {});
    const auto all = take_gradients(parameters);
    for (const char* trained :
         {"mlp", "self_attn", "layernorm", "model.norm", "lm_head", "embed"}) {
      CAPTURE(trained);
      std::map<std::string, at::Tensor> expected;
      for (const auto& [name, tensor] : parameters) {
        const bool trains = name.find(trained) != std::string::npos;
        tensor.requires_grad_(trains);
        if (trains) expected[name] = all.at(name);
      }
      torch::autograd::backward({model.negative_log_likelihood_sum(batch)}, {});
      check_equal(take_gradients(parameters), expected);
    }
  }
}

TEST_CASE("decoder: a row without labels gives zero gradients to every parameter") {
  const auto attention = make_local(cpu_block_kernel());
  const auto config = small_config(false, true);
  const auto parameters = random_leaves(config);
  const auto batch = random_batch(config, {9, 14}, 0.0);
  for (const bool checkpointing : {false, true}) {
    Decoder model(config, parameters, *attention, {checkpointing, at::kFloat});
    const auto loss = sft_loss(model, batch, 5);
    CHECK(loss.item<double>() == 0);
    torch::autograd::backward({loss}, {});
    const auto gradients = take_gradients(parameters);
    CHECK(gradients.size() == parameters.size());
    for (const auto& [name, gradient] : gradients) CHECK_FALSE(gradient.any().item<bool>());
  }
}

TEST_CASE("decoder: without gradients nothing is recorded") {
  const auto attention = make_local(cpu_block_kernel());
  const auto config = small_config(true, false);
  const auto parameters = random_leaves(config);
  const auto batch = random_batch(config, {9}, 1.0);
  Decoder model(config, parameters, *attention, {true, at::kFloat});
  const c10::NoGradGuard no_grad;
  CHECK_FALSE(model.negative_log_likelihood_sum(batch).requires_grad());
  CHECK_FALSE(model.logits(batch).requires_grad());
}

TEST_CASE("decoder: tokens and labels outside of the vocabulary are refused") {
  const auto attention = make_local(cpu_block_kernel());
  const auto config = small_config(true, false);
  Decoder model(config, random_leaves(config), *attention, {});
  auto batch = random_batch(config, {9}, 1.0);
  batch.tokens_T[3] = 53;
  CHECK_THROWS_WITH_AS(model.logits(batch), doctest::Contains("Token 53"), UserError);
  batch = random_batch(config, {9}, 1.0);
  batch.labels_T[3] = 60;
  CHECK_THROWS_WITH_AS(model.token_logprobs(batch), doctest::Contains("Label 60"), UserError);
}

TEST_CASE("head: many chunks give what one gives") {
  at::manual_seed(13);
  const int64_t L = 150, D = 8, V = 31;
  const auto labels = at::randint(V, {L}, at::kLong);
  const auto upstream = at::randn({L}, at::kDouble);
  const auto hidden = at::randn({L, D}, at::kDouble).requires_grad_(true);
  const auto weight = at::randn({V, D}, at::kDouble).requires_grad_(true);
  const auto logprobs =
      at::matmul(hidden, weight.t()).log_softmax(-1).gather(1, labels.unsqueeze(1)).squeeze(1);
  torch::autograd::backward({(logprobs * upstream).sum()}, {});
  const std::vector<NamedTensor> leaves = {{"hidden", hidden}, {"weight", weight}};
  const auto expected = take_gradients(leaves);
  for (const int64_t chunk_bytes : {int64_t{1}, kHeadChunkBytes}) {
    const auto ours = linear_token_logprobs(hidden, weight, labels, chunk_bytes);
    CHECK(relative_error(ours, logprobs) < 1e-13);
    torch::autograd::backward({(ours * upstream).sum()}, {});
    check_equal(take_gradients(leaves), expected);
    const auto nll = linear_nll_sum(hidden, weight, labels, chunk_bytes);
    CHECK(relative_error(nll, -logprobs.sum()) < 1e-13);
  }
}

}  // namespace
}  // namespace longspan
