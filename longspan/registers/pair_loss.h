// The losses over pairs of answers: their names, properties and formulas. No torch.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "longspan/settings/preference_settings.h"

namespace longspan {

/// Losses of a pair. c and r: the policy's log-probability of the chosen and the rejected answer
/// minus the reference's, divided by the number of the answer's labels if the loss is averaging. b:
/// beta. e: label smoothing.
enum class PairLoss {
  kSigmoid,  // DPO (arXiv 2305.18290): -(1 - e) logsigmoid(b (c - r)) - e logsigmoid(-b (c - r))
  kHinge,    // SLiC (arXiv 2305.10425): relu(1 - b (c - r))
  kIpo,      // arXiv 2310.12036, averaging: (c - r - 1 / (2 b))^2
  kKtoPair,  // arXiv 2402.01306, equation 7, on pairs
  kOrpo,     // arXiv 2403.07691, averaging, no reference: -c - b logsigmoid(log odds ratio)
  kSimpo,    // arXiv 2405.14734, averaging, no reference: -logsigmoid(b (c - r) - gamma)
};

/// A key that only one loss uses.
struct PairLossKey {
  std::string_view name;
  double PreferenceSettings::* value;
};

struct PairLossKind {
  std::string_view name;  // the value of pref_loss
  PairLoss loss;
  bool averages;       // an answer's log-probability is divided by the number of its labels
  bool has_reference;  // a reference model's log-probability is subtracted
  // The loss compares a pair with means over all pairs of a step. The means are computed in
  // advance.
  bool has_baselines = false;
  std::optional<PairLossKey> own_key = {};
  // Additional logged values: the parts of the loss (PairTerms::parts_B).
  std::span<const std::string_view> parts = {};
};
inline constexpr std::string_view kOrpoParts[] = {"sft_loss", "odds_ratio_loss"};

/// The register, in the order of the help.
inline constexpr PairLossKind kPairLosses[] = {
    {.name = "sigmoid",
     .loss = PairLoss::kSigmoid,
     .averages = false,
     .has_reference = true,
     .own_key = {{"dpo_label_smoothing", &PreferenceSettings::dpo_label_smoothing}}},
    {.name = "hinge", .loss = PairLoss::kHinge, .averages = false, .has_reference = true},
    {.name = "ipo", .loss = PairLoss::kIpo, .averages = true, .has_reference = true},
    {.name = "kto_pair",
     .loss = PairLoss::kKtoPair,
     .averages = false,
     .has_reference = true,
     .has_baselines = true},
    {.name = "orpo",
     .loss = PairLoss::kOrpo,
     .averages = true,
     .has_reference = false,
     .parts = kOrpoParts},
    {.name = "simpo",
     .loss = PairLoss::kSimpo,
     .averages = true,
     .has_reference = false,
     .own_key = {{"simpo_gamma", &PreferenceSettings::simpo_gamma}}}};
std::vector<std::string_view> names_of_pair_losses();

/// Throws std::logic_error for an unknown name, which the configuration excludes.
PairLoss pair_loss_from(std::string_view name);
const PairLossKind& kind_of(PairLoss loss);
bool has_reference(PairLoss loss);
bool averages(PairLoss loss);

}  // namespace longspan
