// Rewards of rollouts as advantages. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "longspan/registers/policy_loss.h"

namespace longspan {

struct PolicySettings;

/// The statistics of a group's rewards.
struct GroupSpread {
  double sum = 0, mean = 0;
  double std = 0;  // with Bessel's correction; 0 for one rollout
  bool is_zero = false;  // std is at most 1e-8, so that the group teaches nothing
};
GroupSpread spread_of(std::span<const double> rewards);

/// Mean and standard deviation (with Bessel's correction) of numbers of a whole batch.
struct BatchStatistics {
  double mean = 0, std = 0;
};
BatchStatistics batch_statistics(std::span<const double> numbers);

/// Returns the quantile with linear interpolation between neighbours, as torch.quantile. `numbers`:
/// not empty.
double quantile(std::vector<double> numbers, double share);

/// Makes advantages of a configuration's kind (AdvantageKind). Rewards are in the order of groups;
/// `sizes`: numbers of rollouts of the groups.
class AdvantageEstimator {
 public:
  explicit AdvantageEstimator(const PolicySettings& settings);

  /// True if advantages depend on statistics of the whole batch.
  bool of_batch() const { return scaling_ == Scaling::kBatch || kind_ == AdvantageKind::kGroupWhitened; }
  /// Returns the numbers whose statistics advantages() needs.
  std::vector<double> for_batch(std::span<const double> rewards,
                                std::span<const int64_t> sizes) const;
  /// Returns the advantage of each rollout. `batch`: of for_batch() of all groups of the batch, if
  /// of_batch().
  std::vector<double> advantages(std::span<const double> rewards, std::span<const int64_t> sizes,
                                 const BatchStatistics& batch) const;

 private:
  enum class Scaling { kGroup, kBatch, kNone };

  AdvantageKind kind_;
  Scaling scaling_;
};

}  // namespace longspan
