// The losses of pairs and of single answers in cases with known values.
#include "longspan/objectives/preference.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>

#include "longspan/objectives/kto.h"

namespace longspan {
namespace {

at::Tensor numbers(std::vector<double> values) { return at::tensor(values, at::kDouble); }

PairScores random_scores(int64_t num_pairs) {
  const auto sums = [&] { return -20 - 10 * at::rand({num_pairs}, at::kDouble); };
  return {sums(),
          sums(),
          sums(),
          sums(),
          numbers(std::vector<double>(num_pairs, 30.0)),
          numbers(std::vector<double>(num_pairs, 40.0))};
}

TEST_CASE("preference: a policy equal to its reference has the loss of an even bet") {
  const at::Tensor c = numbers({-31.7, -5.2}), r = numbers({-12.25, -44.0});
  const PairScores scores{c, r, c, r, numbers({10, 20}), numbers({30, 40})};
  const auto loss = [&](PairLoss kind, double smoothing = 0.0) {
    const PairOptions options{.loss = kind, .label_smoothing = smoothing};
    const PairBaselines baselines =
        kind_of(kind).has_baselines ? pair_baselines(scores, options) : PairBaselines{};
    return pair_terms(scores, options, baselines).losses_B;
  };
  CHECK(loss(PairLoss::kSigmoid).eq(std::log(2.0)).all().item<bool>());
  CHECK(at::allclose(loss(PairLoss::kSigmoid, 0.2), numbers({std::log(2.0), std::log(2.0)})));
  CHECK(loss(PairLoss::kHinge).eq(1.0).all().item<bool>());
  CHECK(loss(PairLoss::kIpo).eq(25.0).all().item<bool>());  // (1 / (2 * 0.1))^2
  CHECK(loss(PairLoss::kKtoPair).eq(0.5).all().item<bool>());
}

TEST_CASE("preference: losses fall as the chosen answer gains, and rise with the rejected one") {
  at::manual_seed(1);
  for (const PairLossKind& kind : kPairLosses) {
    PairScores scores = random_scores(5);
    for (at::Tensor* x : {&scores.chosen_B, &scores.rejected_B}) x->requires_grad_(true);
    const PairOptions options{.loss = kind.loss, .beta = 0.05, .sft_weight = 0.1};
    const PairBaselines baselines =
        kind.has_baselines ? pair_baselines(scores, options) : PairBaselines{};
    const PairTerms terms = pair_terms(scores, options, baselines);
    torch::autograd::backward({terms.losses_B.sum()}, {});
    CAPTURE(std::string(kind.name));
    CHECK(scores.chosen_B.grad().lt(0).all().item<bool>());
    CHECK(scores.rejected_B.grad().gt(0).all().item<bool>());
    CHECK(!terms.chosen_rewards_B.requires_grad());
    CHECK(terms.parts_B.size() == kind.parts.size());
  }
}

TEST_CASE("preference: kto_pair's estimates of no pairs are zero, and never below") {
  const PairOptions options{.loss = PairLoss::kKtoPair};
  PairScores below = random_scores(2);
  below.reference_chosen_B = below.chosen_B + 1;
  below.reference_rejected_B = below.rejected_B + 1;
  for (const PairScores& scores : {random_scores(0), below}) {
    const PairBaselines baselines = pair_baselines(scores, options);
    for (const at::Tensor& x :
         {baselines.chosen, baselines.rejected, baselines.chosen_slope, baselines.rejected_slope}) {
      CHECK(x.item<double>() == 0.0);
    }
  }
}

TEST_CASE("preference: kto_pair's gradients flow through its estimates, pairs apart or together") {
  at::manual_seed(2);
  const int64_t B = 6;
  PairScores all = random_scores(B);
  // Estimates above zero are not clamped.
  all.chosen_B = (all.reference_chosen_B + at::rand({B}, at::kDouble) * 4).requires_grad_(true);
  all.rejected_B = (all.reference_rejected_B + at::rand({B}, at::kDouble) * 3).requires_grad_(true);
  const PairOptions options{.loss = PairLoss::kKtoPair, .beta = 0.3};
  // The formula of TRL 0.8.6, in one graph.
  const at::Tensor c = all.chosen_B - all.reference_chosen_B;
  const at::Tensor r = all.rejected_B - all.reference_rejected_B;
  const at::Tensor kl_c = c.mean().clamp_min(0), kl_r = r.mean().clamp_min(0);
  const at::Tensor expected =
      at::cat({1 - at::sigmoid(0.3 * (c - kl_r)), 1 - at::sigmoid(0.3 * (kl_c - r))}).mean();
  torch::autograd::backward({expected}, {});
  const at::Tensor dc = all.chosen_B.grad().clone(), dr = all.rejected_B.grad().clone();
  all.chosen_B.mutable_grad().reset();
  all.rejected_B.mutable_grad().reset();

  const PairBaselines baselines = pair_baselines(all, options);
  double loss = 0.0;
  for (int64_t begin = 0; begin < B; begin += 2) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, 2); };
    const PairScores two{part(all.chosen_B),           part(all.rejected_B),
                         part(all.reference_chosen_B), part(all.reference_rejected_B),
                         part(all.chosen_labels_B),    part(all.rejected_labels_B)};
    const at::Tensor mine = pair_terms(two, options, baselines).losses_B.sum() / double(B);
    loss += mine.item<double>();
    torch::autograd::backward({mine}, {});
  }
  CHECK(loss == doctest::Approx(expected.item<double>()).epsilon(1e-12));
  CHECK(at::allclose(all.chosen_B.grad(), dc, 1e-12, 1e-14));
  CHECK(at::allclose(all.rejected_B.grad(), dr, 1e-12, 1e-14));
}

TEST_CASE("preference: averaging losses do not change when answers are repeated") {
  at::manual_seed(3);
  for (const PairLoss kind : {PairLoss::kIpo, PairLoss::kOrpo, PairLoss::kSimpo}) {
    const PairScores once = random_scores(4);
    const PairScores twice{2 * once.chosen_B,           2 * once.rejected_B,
                           2 * once.reference_chosen_B, 2 * once.reference_rejected_B,
                           2 * once.chosen_labels_B,    2 * once.rejected_labels_B};
    const PairOptions options{.loss = kind};
    CHECK(at::allclose(pair_terms(once, options, {}).losses_B,
                       pair_terms(twice, options, {}).losses_B, 1e-12));
  }
}

TEST_CASE("kto: desirable answers, weights and the estimate") {
  const at::Tensor reference = numbers({-10, -20, -30});
  const KtoScores even{reference, reference, numbers({5, 5, 5}),
                       at::tensor({1, 0, 1}, at::kLong).to(at::kBool)};
  const KtoOptions options{.beta = 0.5, .desirable_weight = 2.0, .undesirable_weight = 3.0};
  // The sum over three answers. The estimate is clamped at 0, also for a NaN sum.
  for (const double sum : {0.0, -6.0, std::nan("")}) {
    const KtoBatch batch = kto_batch(numbers({sum, 3, 2}));
    CHECK(at::equal(kto_terms(even, options, batch).losses_B, numbers({1.0, 1.5, 1.0})));
  }
  // A larger estimate demands more of good answers and less of bad ones.
  const KtoBatch batch = kto_batch(numbers({3, 3, 2}));
  const at::Tensor asked = kto_terms(even, options, batch).losses_B;
  CHECK(asked[0].item<double>() == doctest::Approx(2.0 / (1 + std::exp(-0.5))));
  CHECK(asked[1].item<double>() == doctest::Approx(3.0 / (1 + std::exp(0.5))));
  // The SFT part covers only the desirable answers: 0.3 * mean(10 / 5, 30 / 5) * 3 / 2 in all.
  KtoOptions with_sft = options;
  with_sft.sft_weight = 0.3;
  const at::Tensor more =
      kto_terms(even, with_sft, batch).losses_B - kto_terms(even, options, batch).losses_B;
  CHECK(more[1].item<double>() == 0.0);
  CHECK(more.mean().item<double>() == doctest::Approx(0.3 * 4.0 / 2 * 3));
  // It is 0 if the step has none.
  const KtoScores bad{reference, reference, numbers({5, 5, 5}), at::zeros({3}, at::kBool)};
  const KtoBatch of_bad = kto_batch(numbers({3, 3, 0}));
  CHECK(at::equal(kto_terms(bad, with_sft, of_bad).losses_B,
                  kto_terms(bad, options, of_bad).losses_B));
}

}  // namespace
}  // namespace longspan
