// Estimators of advantages: their names and properties. The formulas are in rollouts/advantages.h.
// No torch.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace longspan {

/// The number that is subtracted from a rollout's reward.
enum class Baseline {
  kGroupMean,   // the mean over the group
  kOthersMean,  // the mean over the other rollouts of the group
  kNone,        // 0
};

/// The divisor of the advantages.
enum class AdvantageScale {
  kChosen,    // by the key scale_rewards
  kNone,      // 1
  kWhitened,  // the advantages get mean 0 and variance 1 over all trained tokens of the batch
};

/// scale_rewards: the standard deviation that divides the advantages.
enum class RewardScale {
  kGroup,  // of the group's rewards
  kBatch,  // of all rewards of the batch
  kNone,   // 1
};
inline constexpr std::string_view kRewardScaleNames[] = {"group", "batch", "none"};

struct AdvantageEstimatorKind {
  std::string_view name;
  Baseline baseline;
  AdvantageScale scale;
  /// Minimum number of rollouts in a group. With fewer rollouts, advantages are undefined or always
  /// 0.
  int64_t least_rollouts;
};

/// The register, in the order of the help.
inline constexpr AdvantageEstimatorKind kAdvantageEstimators[] = {
    // arXiv 2402.03300
    {"grpo", Baseline::kGroupMean, AdvantageScale::kChosen, 2},
    // arXiv 2503.20783
    {"dr_grpo", Baseline::kGroupMean, AdvantageScale::kNone, 2},
    // arXiv 2402.14740
    {"rloo", Baseline::kOthersMean, AdvantageScale::kNone, 2},
    // REINFORCE++ with baseline, arXiv 2501.03262
    {"reinforce_plus_plus_baseline", Baseline::kGroupMean, AdvantageScale::kWhitened, 2},
    {"reward", Baseline::kNone, AdvantageScale::kNone, 1},
};
std::vector<std::string_view> names_of_advantage_estimators();

/// Throw std::logic_error for an unknown name, which the configuration excludes.
const AdvantageEstimatorKind& advantage_estimator_named(std::string_view name);
RewardScale reward_scale_named(std::string_view name);

}  // namespace longspan
