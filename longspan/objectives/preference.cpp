#include "longspan/objectives/preference.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <stdexcept>

namespace longspan {
namespace {

struct LogRatios {
  at::Tensor chosen_B, rejected_B;
};

at::Tensor per_label(const at::Tensor& sums_B, const at::Tensor& labels_B) {
  return sums_B / labels_B.clamp_min(1);
}

LogRatios log_ratios(const PairScores& scores, PairLoss loss) {
  LogRatios ratios{scores.chosen_B, scores.rejected_B};
  if (has_reference(loss)) {
    ratios.chosen_B = ratios.chosen_B - scores.reference_chosen_B;
    ratios.rejected_B = ratios.rejected_B - scores.reference_rejected_B;
  }
  if (averages(loss)) {
    ratios.chosen_B = per_label(ratios.chosen_B, scores.chosen_labels_B);
    ratios.rejected_B = per_label(ratios.rejected_B, scores.rejected_labels_B);
  }
  return ratios;
}

/// log(1 - exp(x)) for x < 0.
at::Tensor log_of_complement(const at::Tensor& x) { return at::log(-at::expm1(x)); }

/// Returns 0 with gradient `slope`.
at::Tensor gradient_only(const at::Tensor& x, const at::Tensor& slope) {
  return (x - x.detach()) * slope;
}

}  // namespace

PairBaselines pair_baselines(const PairScores& all, const PairOptions& options) {
  if (options.loss != PairLoss::kKtoPair) {
    throw std::logic_error("the estimates of kto_pair are asked for another loss");
  }
  const c10::NoGradGuard no_grad;
  const LogRatios ratios = log_ratios(all, options.loss);
  const double beta = options.beta;
  const at::Tensor zero = at::zeros({}, ratios.chosen_B.options());
  if (ratios.chosen_B.size(0) == 0) return {zero, zero, zero, zero};
  const at::Tensor chosen = ratios.chosen_B.mean(), rejected = ratios.rejected_B.mean();
  const auto where_positive = [&](const at::Tensor& mean, const at::Tensor& x) {
    return at::where(mean.gt(0), x, zero);
  };
  PairBaselines baselines{.chosen = where_positive(chosen, chosen),
                          .rejected = where_positive(rejected, rejected),
                          .chosen_slope = {},
                          .rejected_slope = {}};
  // d/dx of -sigmoid(x) / 2. The x of the first half falls with the rejected estimate, the x of the
  // second grows with the chosen estimate.
  const auto slope = [](const at::Tensor& x) {
    const at::Tensor s = at::sigmoid(x);
    return -0.5 * (s * (1 - s)).mean();
  };
  baselines.rejected_slope =
      where_positive(rejected, -beta * slope(beta * (ratios.chosen_B - baselines.rejected)));
  baselines.chosen_slope =
      where_positive(chosen, beta * slope(beta * (baselines.chosen - ratios.rejected_B)));
  return baselines;
}

PairTerms pair_terms(const PairScores& scores, const PairOptions& options,
                     const PairBaselines& baselines) {
  const auto [chosen_B, rejected_B] = log_ratios(scores, options.loss);
  const at::Tensor delta_B = chosen_B - rejected_B;
  const double beta = options.beta;
  PairTerms terms;
  switch (options.loss) {
    case PairLoss::kSigmoid: {
      const double e = options.label_smoothing;
      terms.losses_B = -(1 - e) * at::log_sigmoid(beta * delta_B);
      if (e > 0) terms.losses_B = terms.losses_B - e * at::log_sigmoid(-beta * delta_B);
      break;
    }
    case PairLoss::kHinge:
      terms.losses_B = at::relu(1 - beta * delta_B);
      break;
    case PairLoss::kIpo:
      terms.losses_B = (delta_B - 1 / (2 * beta)).square();
      break;
    case PairLoss::kKtoPair:
      terms.losses_B = 0.5 * ((1 - at::sigmoid(beta * (chosen_B - baselines.rejected))) +
                              (1 - at::sigmoid(beta * (baselines.chosen - rejected_B)))) +
                       gradient_only(chosen_B, baselines.chosen_slope) +
                       gradient_only(rejected_B, baselines.rejected_slope);
      break;
    case PairLoss::kOrpo: {
      const at::Tensor log_odds_B =
          delta_B - (log_of_complement(chosen_B) - log_of_complement(rejected_B));
      const at::Tensor odds_ratio_B = -at::log_sigmoid(log_odds_B);
      terms.losses_B = beta * odds_ratio_B - chosen_B;
      terms.parts_B = {-chosen_B.detach(), odds_ratio_B.detach()};
      break;
    }
    case PairLoss::kSimpo:
      terms.losses_B = -at::log_sigmoid(beta * delta_B - options.simpo_gamma);
      break;
  }
  if (options.sft_weight > 0) {
    terms.losses_B =
        terms.losses_B - options.sft_weight * per_label(scores.chosen_B, scores.chosen_labels_B);
  }
  terms.chosen_rewards_B = beta * chosen_B.detach();
  terms.rejected_rewards_B = beta * rejected_B.detach();
  return terms;
}

}  // namespace longspan
