// Rewards of rollouts as advantages: pure functions of numbers. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "longspan/registers/advantage.h"

namespace longspan {

/// Mean and standard deviation of a group's rewards.
struct RewardSpread {
  double mean = 0;
  double std = 0;  // with Bessel's correction, as torch.std; 0 for one reward
  /// Whether std is 0 within the tolerance 1e-8 of torch.isclose.
  bool is_zero() const { return std <= 1e-8; }
};
/// The mean of equal rewards is exact. `rewards` must not be empty.
RewardSpread spread_of_rewards(const std::vector<double>& rewards);

/// The rollouts of a group.
struct RewardedGroup {
  std::string name;  // for errors
  std::vector<double> rewards;
  std::vector<int64_t> num_labels;  // trained tokens of each rollout; used by kWhitened only
};

/// The advantages of a batch, by group and rollout.
struct BatchAdvantages {
  std::vector<std::vector<double>> of_groups;
  /// Share of the rollouts whose group has equal rewards (RewardSpread::is_zero). With
  /// scale_rewards: batch, 1 if all rewards of the batch are equal, else 0. TRL's
  /// frac_reward_zero_std.
  double zero_std_share = 0;
};

/// Returns the advantages of all groups of a batch. Formulas, for a reward r:
///   grpo      (r - mean of the group) / (std + 1e-4); std is of the group or of the batch, by
///             `scale`; kNone: not divided. TRL's GRPOTrainer.
///   dr_grpo   r - mean of the group
///   rloo      r - mean of the group's other rollouts. TRL's RLOOTrainer.
///   reinforce_plus_plus_baseline
///             a = r - mean of the group, then (a - m) / sqrt(v + 1e-8). m and v are the mean and
///             the variance (divided by the number) of `a` over all trained tokens of the batch.
///             OpenRLHF's reinforce_baseline.
///   reward    r
/// Throws UserError with the group's name: fewer rollouts than the estimator compares, rewards so
/// large that an advantage is not finite.
BatchAdvantages advantages_of(const std::vector<RewardedGroup>& groups,
                              const AdvantageEstimatorKind& kind, RewardScale scale);

/// Returns the sum of weight x reward over the names of `weights`, as TRL's sum_then_normalize.
/// `place`: the rollout, for errors. Throws UserError if a named reward is missing or a reward has
/// no weight.
double weighted_reward(const std::map<std::string, double>& rewards,
                       const std::map<std::string, double>& weights, const std::string& place);

}  // namespace longspan
