// The head's losses over large vocabularies, and for hidden states that are not finite; its scores
// of tokens at a temperature.
#include "longspan/kernels/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <bit>
#include <cmath>

#include "longspan/memory/counting_allocator.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

TEST_CASE("head: losses over 49k and 152k tokens are those of fp64") {
  at::manual_seed(1);
  for (const int64_t V : {49152, 151936}) {
    const int64_t L = 4;
    // One-hot hidden states make the products exact: column l holds the logits of label l, like a
    // trained model's.
    at::Tensor logits_VL = at::randn({V, L}).mul_(2).add_(4);
    logits_VL.narrow(0, 100, 8).copy_(at::linspace(20, 14, 8).unsqueeze(1).expand({8, L}));
    const at::Tensor hidden = at::eye(L), labels = at::tensor({100, 103, 107, 5}, at::kLong);
    const at::Tensor exact_L =
        logits_VL.t().to(at::kDouble).log_softmax(-1).gather(1, labels.unsqueeze(1)).squeeze(1);
    const at::Tensor logprobs = linear_token_logprobs(hidden, logits_VL, labels);
    CHECK((logprobs - exact_L).abs().max().item<double>() < 1e-7);
    const double exact = -exact_L.sum().item<double>();
    CHECK(std::abs(linear_nll_sum(hidden, logits_VL, labels).item<double>() - exact) < 4e-7);
    const at::Tensor trained = hidden.clone().requires_grad_(true);
    const at::Tensor nll = linear_nll_sum(trained, logits_VL, labels);
    CHECK(std::abs(nll.item<double>() - exact) < 4e-7);
    torch::autograd::backward({nll}, {});
    CHECK((trained.grad().scalar_type() == at::kFloat));
  }
}

TEST_CASE("head: an evaluation of what is not finite is not finite") {
  const c10::NoGradGuard no_grad;
  at::manual_seed(2);
  const at::Tensor labels = at::arange(6, at::kLong);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const uint32_t bits : {0x7FC00000U, 0xFFC00000U, 0xFF800001U, 0x7F800000U, 0xFF800000U}) {
      const auto bad = at::full({1}, std::bit_cast<float>(bits)).to(dtype);
      const at::Tensor hidden = at::randn({6, 8}).to(dtype), weight = at::randn({50, 8}).to(dtype);
      at::Tensor bad_hidden = hidden.clone(), bad_weight = weight.clone();
      bad_hidden.view(-1).narrow(0, 17, 1).copy_(bad);
      bad_weight.view(-1).narrow(0, 333, 1).copy_(bad);
      CHECK(std::isfinite(linear_nll_sum(hidden, weight, labels).item<double>()));
      CHECK(!std::isfinite(linear_nll_sum(bad_hidden, weight, labels).item<double>()));
      CHECK(!std::isfinite(linear_nll_sum(hidden, bad_weight, labels).item<double>()));
    }
  }
}

TEST_CASE("head: factors multiply the losses of tokens and their gradients, in any chunks") {
  at::manual_seed(6);
  const int64_t L = 150, D = 8, V = 31;
  const auto labels = at::randint(V, {L}, at::kLong);
  const auto hidden = at::randn({L, D}, at::kDouble).requires_grad_(true);
  const auto weight = at::randn({V, D}, at::kDouble).requires_grad_(true);
  const LossFactors factors = [](const LossChunk& chunk) {
    return chunk.nll_C.neg().exp() * chunk.logits_CV.amax(1) + chunk.labels_C;
  };
  const auto logits_LV = at::matmul(hidden, weight.t());
  const auto nll_L = -logits_LV.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1);
  const auto expected = (nll_L * factors({logits_LV.detach(), labels, nll_L.detach()})).sum();
  const auto gradients = torch::autograd::grad({expected * 0.3}, {hidden, weight});
  for (const ChunkBytes chunk_bytes : {ChunkBytes(1), ChunkBytes()}) {
    for (const std::optional<double> upstream : {std::optional<double>(), {0.3}}) {
      const HeadGradient known{.upstream = upstream};
      const auto ours = linear_nll_sum(hidden, weight, labels, chunk_bytes, known, factors);
      CHECK(relative_error(ours, expected.detach()) < 1e-13);
      torch::autograd::backward({ours * 0.3}, {});
      CHECK(relative_error(hidden.grad(), gradients[0]) < 1e-12);
      CHECK(relative_error(weight.grad(), gradients[1]) < 1e-12);
      for (const at::Tensor& x : {hidden, weight}) x.mutable_grad().reset();
      const c10::NoGradGuard no_grad;
      const auto evaluated = linear_nll_sum(hidden, weight, labels, chunk_bytes, {}, factors);
      CHECK(at::equal(evaluated, ours));
      CHECK_FALSE(weight.grad().defined());
    }
  }
}

TEST_CASE("head: scores at a temperature are those of full logits, in any chunks") {
  at::manual_seed(3);
  const int64_t L = 150, D = 8, V = 31;
  const auto labels = at::randint(V, {L}, at::kLong);
  const auto upstream = at::randn({L}, at::kDouble);
  const auto hidden = at::randn({L, D}, at::kDouble).requires_grad_(true);
  const auto weight = at::randn({V, D}, at::kDouble).requires_grad_(true);
  const auto take_gradients = [&] {
    std::vector<at::Tensor> gradients = {hidden.grad(), weight.grad()};
    for (const at::Tensor& x : {hidden, weight}) x.mutable_grad().reset();
    return gradients;
  };
  for (const double temperature : {1.0, 0.6, 3.0}) {
    CAPTURE(temperature);
    const auto all_LV = (at::matmul(hidden, weight.t()) / temperature).log_softmax(-1);
    const auto logprobs = all_LV.gather(1, labels.unsqueeze(1)).squeeze(1);
    const auto entropies = -(all_LV.exp() * all_LV).sum(1);
    torch::autograd::backward({(logprobs * upstream).sum()}, {});
    const auto expected = take_gradients();
    for (const ChunkBytes chunk_bytes : {ChunkBytes(1), ChunkBytes()}) {
      const auto ours =
          linear_token_scores(hidden, weight, labels, {temperature, true}, chunk_bytes);
      CHECK(relative_error(ours.logprobs_L, logprobs) < 1e-13);
      CHECK(relative_error(ours.entropies_L, entropies.detach()) < 1e-13);
      CHECK_FALSE(ours.entropies_L.requires_grad());
      torch::autograd::backward({(ours.logprobs_L * upstream).sum()}, {});
      const auto gradients = take_gradients();
      CHECK(relative_error(gradients[0], expected[0]) < 1e-12);
      CHECK(relative_error(gradients[1], expected[1]) < 1e-12);
      const auto without = linear_token_scores(hidden, weight, labels, {temperature}, chunk_bytes);
      CHECK_FALSE(without.entropies_L.defined());
      CHECK(at::equal(without.logprobs_L, ours.logprobs_L));
      if (temperature == 1.0) {
        const auto logprobs_alone = linear_token_logprobs(hidden, weight, labels, chunk_bytes);
        CHECK(at::equal(logprobs_alone, ours.logprobs_L));
        torch::autograd::backward({(logprobs_alone * upstream).sum()}, {});
        const auto of_logprobs = take_gradients();
        CHECK(at::equal(of_logprobs[0], gradients[0]));
        CHECK(at::equal(of_logprobs[1], gradients[1]));
      }
    }
  }
  for (const double temperature : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    CHECK_THROWS_WITH(linear_token_scores(hidden, weight, labels, {temperature}),
                      doctest::Contains("a temperature of"));
  }
}

TEST_CASE("head: scores with a softcap are those of capped logits, also at a temperature") {
  at::manual_seed(5);
  const int64_t L = 30, D = 8, V = 31;
  const auto labels = at::randint(V, {L}, at::kLong);
  const auto upstream = at::randn({L}, at::kDouble);
  const auto hidden = at::randn({L, D}, at::kDouble).requires_grad_(true);
  const auto weight = at::randn({V, D}, at::kDouble).requires_grad_(true);
  for (const double temperature : {1.0, 0.6}) {
    CAPTURE(temperature);
    const auto capped_LV = at::tanh(at::matmul(hidden, weight.t()) / 2.5) * 2.5;
    const auto logprobs = (capped_LV / temperature).log_softmax(-1).gather(1, labels.unsqueeze(1));
    const auto expected =
        torch::autograd::grad({(logprobs.squeeze(1) * upstream).sum()}, {hidden, weight});
    const TokenScoreOptions options{.temperature = temperature, .softcap = 2.5};
    for (const ChunkBytes chunk_bytes : {ChunkBytes(1), ChunkBytes()}) {
      const auto ours =
          linear_token_scores(hidden, weight, labels, options, chunk_bytes).logprobs_L;
      CHECK(relative_error(ours, logprobs.squeeze(1)) < 1e-13);
      torch::autograd::backward({(ours * upstream).sum()}, {});
      CHECK(relative_error(hidden.grad(), expected[0]) < 1e-12);
      CHECK(relative_error(weight.grad(), expected[1]) < 1e-12);
      for (const at::Tensor& x : {hidden, weight}) x.mutable_grad().reset();
    }
  }
  for (const double softcap : {0.0, -1.0, HUGE_VAL}) {
    CHECK_THROWS_WITH(linear_token_scores(hidden, weight, labels, {.softcap = softcap}),
                      doctest::Contains("a softcap of"));
  }
}

TEST_CASE("head: entropies over 152k tokens are those of fp64, with a chunk of logits") {
  const c10::NoGradGuard no_grad;
  at::manual_seed(4);
  const int64_t L = 64, V = 151936;
  const at::Tensor hidden = at::randn({L, 4}), weight = at::randn({V, 4});
  const at::Tensor labels = at::randint(V, {L}, at::kLong);
  // Exact arithmetic on the same fp32 logits.
  const at::Tensor all_LV = at::mm(hidden, weight.t()).to(at::kDouble).log_softmax(-1);
  const at::Tensor exact_L = -(all_LV.exp() * all_LV).sum(1);
  AllocationCounter counter(AllocationCounter::Of::kProcess);
  const TokenScores scores = linear_token_scores(hidden, weight, labels, {1.0, true}, 1);
  const int64_t chunk = 32 * V * 4;
  CHECK(counter.peak_bytes() < 3 * chunk / 2);
  // fp32 roundings of logits of about 10 in another order of summation, and of a log-sum-exp of
  // about 20.
  CHECK((scores.entropies_L - exact_L).abs().max().item<double>() < 1e-6 * 20);
  // Equal logits.
  const TokenScores even =
      linear_token_scores(at::zeros({2, 4}), weight, labels.narrow(0, 0, 2), {0.5, true});
  CHECK((even.entropies_L - std::log(V)).abs().max().item<double>() < 1e-6);
}

}  // namespace
}  // namespace longspan
