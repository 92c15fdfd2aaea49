// The head's losses over large vocabularies, and for hidden states that are not finite.
#include "longspan/kernels/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <bit>
#include <cmath>

namespace longspan {
namespace {

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

}  // namespace
}  // namespace longspan
