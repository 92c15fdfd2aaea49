#include "longspan/registers/advantage.h"

#include <fmt/format.h>

#include <iterator>
#include <stdexcept>

namespace longspan {

std::vector<std::string_view> names_of_advantage_estimators() {
  std::vector<std::string_view> names;
  for (const AdvantageEstimatorKind& kind : kAdvantageEstimators) names.push_back(kind.name);
  return names;
}

const AdvantageEstimatorKind& advantage_estimator_named(std::string_view name) {
  for (const AdvantageEstimatorKind& kind : kAdvantageEstimators) {
    if (kind.name == name) return kind;
  }
  throw std::logic_error(fmt::format("there is no estimator of advantages named {}", name));
}

RewardScale reward_scale_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kRewardScaleNames); ++i) {
    if (kRewardScaleNames[i] == name) return static_cast<RewardScale>(i);
  }
  throw std::logic_error(fmt::format("there is no scale of rewards named {}", name));
}

}  // namespace longspan
