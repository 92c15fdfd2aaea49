#include "longspan/registers/policy_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>

#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

const PolicyLossKind& kind_named(std::string_view name) {
  for (const PolicyLossKind& kind : kPolicyLosses) {
    if (kind.name == name) return kind;
  }
  throw std::logic_error(fmt::format("there is no loss of rollouts with the name {}", name));
}

int index_of(std::span<const std::string_view> names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw std::logic_error(fmt::format("there is no choice {}", name));
  return static_cast<int>(found - names.begin());
}

RatioLevel level_of(const PolicySettings& settings, const PolicyLossKind& kind) {
  if (!settings.importance_sampling_level) return kind.level;
  const std::string& level = *settings.importance_sampling_level;
  if (level == "token") return RatioLevel::kToken;
  if (level == "sequence") return RatioLevel::kSequenceMean;
  throw std::logic_error(fmt::format("there is no level {}", level));
}

SamplerCorrection correction_of(std::string_view name) {
  const int index = index_of(kCorrectionNames, name);
  return {.corrects = index > 0, .of_sequences = index > 2, .masks = index == 2 || index == 4};
}

}  // namespace

std::vector<std::string_view> names_of_policy_losses() {
  std::vector<std::string_view> names;
  for (const PolicyLossKind& kind : kPolicyLosses) names.push_back(kind.name);
  return names;
}

PolicyLoss policy_loss_of(const PolicySettings& settings) {
  const PolicyLossKind& kind = kind_named(settings.loss_type);
  return {.kind = kind,
          .level = level_of(settings, kind),
          .advantages = advantage_estimator_named(
              settings.advantage_estimator ? *settings.advantage_estimator : kind.advantages),
          .kl = settings.kl_estimator
                    ? static_cast<KlEstimator>(index_of(kKlEstimatorNames, *settings.kl_estimator))
                    : kind.kl,
          .kl_in_reward = settings.kl_in_reward.value_or(kind.kl_in_reward),
          .correction = correction_of(settings.importance_sampling_correction)};
}

}  // namespace longspan
