// Compares the decoder to a plain model of ATen operators in fp64 with autograd's gradients. There,
// rounding is the only legitimate difference.
#include "longspan/models/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/base/user_error.h"
#include "longspan/kernels/linear_cross_entropy.h"
#include "longspan/objectives/sft.h"
#include "longspan/rows/shared_prompt.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/plain_model.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::check_equal;
using testing::plain_logprobs;
using testing::random_batch;
using testing::random_leaves;
using testing::relative_error;
using testing::small_model;
using testing::take_gradients;

TEST_CASE("decoder: log probabilities and all gradients are those of the plain model") {
  const auto attention = make_local(cpu_block_kernel());
  for (const bool tied : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      for (const double share : {1.0, 0.3}) {
        CAPTURE(tied);
        CAPTURE(checkpointing);
        CAPTURE(share);
        auto spec = small_model(tied, /*biases=*/tied);
        const auto parameters = random_leaves(spec);
        const auto batch = random_batch(spec, {9, 1, 14}, share);
        spec.padding_token = batch.tokens_T[3].item<int64_t>();
        Decoder model(spec, parameters, *attention, {checkpointing, at::kFloat});

        const auto expected = plain_logprobs(spec, parameters, batch);
        const auto upstream = at::randn(expected.sizes(), at::kDouble);
        torch::autograd::backward({(expected * upstream).sum()}, {});
        const auto expected_gradients = take_gradients(parameters);
        const auto logprobs = model.token_logprobs(batch);
        CHECK(relative_error(logprobs, expected) < 1e-12);
        torch::autograd::backward({(logprobs * upstream).sum()}, {});
        check_equal(take_gradients(parameters), expected_gradients);

        torch::autograd::backward({-plain_logprobs(spec, parameters, batch).sum() / 7}, {});
        const auto expected_sum_gradients = take_gradients(parameters);
        const auto loss = sft_loss(model, batch, 7);
        CHECK(relative_error(loss, -expected.sum() / 7) < 1e-12);
        torch::autograd::backward({loss}, {});
        check_equal(take_gradients(parameters), expected_sum_gradients);

        // A second micro-batch adds to the gradients.
        torch::autograd::backward({sft_loss(model, batch, 14)}, {});
        torch::autograd::backward({sft_loss(model, batch, 14)}, {});
        check_equal(take_gradients(parameters), expected_sum_gradients);
      }
    }
  }
}

/// A random prompt that both answers share, then the two answers, equal in their first `num_alike`
/// tokens.
Example random_pair(const ModelSpec& spec, int64_t prompt, int64_t chosen, int64_t rejected,
                    int64_t num_alike = 0) {
  const auto tokens = [&](int64_t count) {
    const auto random = at::randint(spec.vocab_size, {count}, at::kInt);
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
  const auto spec = small_model(false, /*biases=*/true);
  const auto parameters = random_leaves(spec);
  // Answers of one token; nothing to share; answers that begin alike.
  const std::vector<Example> pairs = {random_pair(spec, 9, 6, 4), random_pair(spec, 5, 1, 3),
                                      random_pair(spec, 2, 4, 1), random_pair(spec, 1, 4, 6),
                                      random_pair(spec, 6, 5, 7, 2)};
  std::vector<const Example*> together;
  std::vector<const Sample*> apart;
  for (const Example& pair : pairs) {
    together.push_back(&pair);
    for (const Sample& document : pair.documents) apart.push_back(&document);
  }
  const Batch shared = collate_shared(together, SharedTokens::kWithoutLabels),
              unshared = collate(apart);
  CHECK(unshared.tokens_T.numel() - shared.tokens_T.numel() == 8 + 4 + 1 + 0 + 5);
  const auto at_labels = [](const Batch& batch, const at::Tensor& x_T) {
    return x_T.masked_select(batch.labels_T.ne(kIgnoreLabel));
  };
  CHECK(at_labels(shared, shared.labels_T).equal(at_labels(unshared, unshared.labels_T)));
  CHECK(at_labels(shared, shared.documents_T).equal(at_labels(unshared, unshared.documents_T)));
  CHECK(at_labels(shared, shared.positions_T).equal(at_labels(unshared, unshared.positions_T)));
  for (const bool checkpointing : {false, true}) {
    Decoder model(spec, parameters, *attention, {checkpointing, at::kFloat});
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
  const auto spec = small_model(true, true);
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {6, 5}, 0.7);
  Decoder model(spec, parameters, *attention, {true, at::kFloat});
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
    // The error of central differences: step^2 times third derivatives, plus 1e-16 / step.
    CHECK(actual == doctest::Approx(expected).epsilon(1e-6).scale(1.0));
  }
}

TEST_CASE("decoder: frozen parameters get no gradient, the others the same as before") {
  const auto attention = make_local(cpu_block_kernel());
  const auto spec = small_model(false, true);
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {9, 14}, 0.5);
  for (const bool checkpointing : {false, true}) {
    for (const auto& [name, tensor] : parameters) tensor.requires_grad_(true);
    Decoder model(spec, parameters, *attention, {checkpointing, at::kFloat});
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
  const auto spec = small_model(false, true);
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {9, 14}, 0.0);
  for (const bool checkpointing : {false, true}) {
    Decoder model(spec, parameters, *attention, {checkpointing, at::kFloat});
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
  const auto spec = small_model(true, false);
  const auto parameters = random_leaves(spec);
  const auto batch = random_batch(spec, {9}, 1.0);
  Decoder model(spec, parameters, *attention, {true, at::kFloat});
  const c10::NoGradGuard no_grad;
  CHECK_FALSE(model.negative_log_likelihood_sum(batch).requires_grad());
  CHECK_FALSE(model.logits(batch).requires_grad());
}

TEST_CASE("decoder: tokens and labels outside of the vocabulary are refused") {
  const auto attention = make_local(cpu_block_kernel());
  const auto spec = small_model(true, false);
  Decoder model(spec, random_leaves(spec), *attention, {});
  auto batch = random_batch(spec, {9}, 1.0);
  batch.tokens_T[3] = 53;
  CHECK_THROWS_WITH_AS(model.logits(batch), doctest::Contains("Token 53"), UserError);
  batch = random_batch(spec, {9}, 1.0);
  batch.labels_T[3] = 60;
  CHECK_THROWS_WITH_AS(model.token_logprobs(batch), doctest::Contains("Label 60"), UserError);
  CHECK_THROWS_WITH_AS(model.check_ids(batch), doctest::Contains("Label 60"), UserError);
  batch.tokens_T[3] = -1;
  CHECK_THROWS_WITH_AS(model.check_ids(batch), doctest::Contains("Token -1"), UserError);
  CHECK_NOTHROW(model.check_ids(random_batch(spec, {9}, 1.0)));
}

TEST_CASE("decoder: scores at a temperature are those of its logits") {
  const auto attention = make_local(cpu_block_kernel());
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto spec = small_model(tied, /*biases=*/false);
    const auto parameters = random_leaves(spec);
    const auto batch = random_batch(spec, {9, 1, 14}, 0.6);
    Decoder model(spec, parameters, *attention, {});
    const at::Tensor rows_L = label_rows(batch);
    const auto all_LV = (model.logits(batch).index_select(0, rows_L) / 0.7).log_softmax(1);
    const auto labels_L1 = batch.labels_T.index_select(0, rows_L).unsqueeze(1);
    const auto expected = all_LV.gather(1, labels_L1).squeeze(1);
    const auto upstream = at::randn(expected.sizes(), at::kDouble);
    torch::autograd::backward({(expected * upstream).sum()}, {});
    const auto expected_gradients = take_gradients(parameters);
    const TokenScores scores = model.token_scores(batch, {.temperature = 0.7, .entropies = true});
    CHECK(relative_error(scores.logprobs_L, expected) < 1e-12);
    CHECK(relative_error(scores.entropies_L, -(all_LV.exp() * all_LV).sum(1).detach()) < 1e-12);
    CHECK_FALSE(scores.entropies_L.requires_grad());
    torch::autograd::backward({(scores.logprobs_L * upstream).sum()}, {});
    check_equal(take_gradients(parameters), expected_gradients);
    CHECK(at::equal(model.token_scores(batch, {}).logprobs_L, model.token_logprobs(batch)));
  }
}

/// Removes the values of parameters outside of their uses.
class RemovedBetweenUses final : public ParameterHooks {
 public:
  RemovedBetweenUses(const ModelSpec& spec, const std::vector<NamedTensor>& parameters) {
    for (const ParameterSpec& parameter : parameters_of(spec)) {
      if (parameter.unit == kAlwaysThere) continue;
      for (const auto& [name, tensor] : parameters) {
        if (name != parameter.name) continue;
        units_[parameter.unit].push_back({tensor.detach(), tensor.detach().clone()});
      }
    }
    for (const auto& [unit, values] : units_) after(unit, Use::kForward);
  }
  void before(int unit, Use use, int /*next*/) override {
    CHECK((use == Use::kForward));
    ++num_uses[unit];
    for (const auto& [used, held] : units_[unit]) used.copy_(held);
  }
  void after(int unit, Use use) override {
    CHECK((use == Use::kForward));
    for (const auto& [used, held] : units_[unit]) used.fill_(std::nan(""));
  }

  std::map<int, int> num_uses;

 private:
  std::map<int, std::vector<std::pair<at::Tensor, at::Tensor>>> units_;
};

TEST_CASE("decoder: the divergence from a teacher is that of their logits") {
  const auto attention = make_local(cpu_block_kernel());
  const auto spec = small_model(true, /*biases=*/false), other = small_model(false, true);
  const auto parameters = random_leaves(spec);
  std::vector<NamedTensor> teachers;
  for (const auto& [name, tensor] : random_leaves(other)) {
    teachers.push_back({name, tensor.detach() * 1.5});
  }
  const auto batch = random_batch(spec, {9, 1, 14}, 0.6);
  const at::Tensor rows_L = label_rows(batch);
  Decoder student(spec, parameters, *attention, {});
  const auto logits_of_teacher = [&] {
    const c10::NoGradGuard no_grad;
    return Decoder(other, teachers, *attention, {}).logits(batch).index_select(0, rows_L);
  };
  const at::Tensor t = (logits_of_teacher() / 1.4).log_softmax(1);
  const at::Tensor s = (student.logits(batch).index_select(0, rows_L) / 1.4).log_softmax(1);
  const at::Tensor m = (0.3 * t.exp() + 0.7 * s.exp()).log();
  const at::Tensor expected = (0.3 * t.exp() * (t - m) + 0.7 * s.exp() * (s - m)).sum(1);
  const auto upstream = at::randn(expected.sizes(), at::kDouble);
  torch::autograd::backward({(expected * upstream).sum()}, {});
  const auto expected_gradients = take_gradients(parameters);
  for (const bool hooks : {false, true}) {
    CAPTURE(hooks);
    RemovedBetweenUses removed(other, hooks ? teachers : std::vector<NamedTensor>());
    DecoderOptions options;
    if (hooks) options.parameter_hooks = &removed;
    Decoder teacher(other, teachers, *attention, options);
    const auto ours = student.divergence_from(teacher.teacher_head(batch), batch,
                                              {.beta = 0.3, .temperature = 1.4});
    CHECK(relative_error(ours, expected) < 1e-12);
    torch::autograd::backward({(ours * upstream).sum()}, {});
    check_equal(take_gradients(parameters), expected_gradients);
    for (const auto& [name, tensor] : teachers) CHECK_FALSE(tensor.grad().defined());
    // The head is used in the forward and in the backward.
    if (hooks) CHECK(removed.num_uses[other.head_unit()] == 2);
  }
  const auto both =
      student.logprobs_and_divergences({student.teacher_head(batch)}, batch, {.beta = 0});
  CHECK(at::equal(both.select(0, 0), student.token_logprobs(batch)));
  CHECK(both.select(0, 1).abs().max().item<double>() < 1e-14);
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
  for (const ChunkBytes chunk_bytes : {ChunkBytes(1), ChunkBytes()}) {
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
