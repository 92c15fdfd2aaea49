#include "longspan/rollouts/advantages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

// Added to standard deviations: as in TRL, and as in OpenRLHF.
constexpr double kGroupEpsilon = 1e-4, kWhitenedEpsilon = 1e-9;

/// Calls visit(rewards of a group) for each group.
void for_each_group(std::span<const double> rewards, std::span<const int64_t> sizes,
                    const std::function<void(std::span<const double>)>& visit) {
  size_t begin = 0;
  for (const int64_t size : sizes) {
    if (begin + size > rewards.size()) throw std::logic_error("groups of more rewards");
    visit(rewards.subspan(begin, size));
    begin += size;
  }
  if (begin != rewards.size()) throw std::logic_error("rewards of no group");
}

}  // namespace

BatchStatistics batch_statistics(std::span<const double> numbers) {
  BatchStatistics result;
  if (numbers.empty()) return result;
  const auto count = static_cast<double>(numbers.size());
  for (const double number : numbers) result.mean += number;
  result.mean /= count;
  if (numbers.size() < 2) return result;
  double squares = 0;
  for (const double number : numbers) {
    squares += (number - result.mean) * (number - result.mean);
  }
  result.std = std::sqrt(squares / (count - 1));
  return result;
}

GroupSpread spread_of(std::span<const double> rewards) {
  const auto [mean, std] = batch_statistics(rewards);
  return {.sum = mean * static_cast<double>(rewards.size()),
          .mean = mean,
          .std = std,
          .is_zero = std <= 1e-8};
}

double quantile(std::vector<double> numbers, double share) {
  if (numbers.empty()) throw std::logic_error("a quantile of no numbers");
  std::ranges::sort(numbers);
  const double place = share * static_cast<double>(numbers.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, numbers.size() - 1);
  return std::lerp(numbers[below], numbers[above], place - static_cast<double>(below));
}

AdvantageEstimator::AdvantageEstimator(const PolicySettings& settings)
    : kind_(policy_loss_of(settings).advantages) {
  if (settings.scale_rewards == "group") {
    scaling_ = Scaling::kGroup;
  } else if (settings.scale_rewards == "batch") {
    scaling_ = Scaling::kBatch;
  } else if (settings.scale_rewards == "none") {
    scaling_ = Scaling::kNone;
  } else {
    throw std::logic_error("a scale of no kind");
  }
}

std::vector<double> AdvantageEstimator::for_batch(std::span<const double> rewards,
                                                  std::span<const int64_t> sizes) const {
  if (kind_ != AdvantageKind::kGroupWhitened) return {rewards.begin(), rewards.end()};
  std::vector<double> numbers;
  for_each_group(rewards, sizes, [&](std::span<const double> group) {
    const double mean = spread_of(group).mean;
    for (const double reward : group) numbers.push_back(reward - mean);
  });
  return numbers;
}

std::vector<double> AdvantageEstimator::advantages(std::span<const double> rewards,
                                                   std::span<const int64_t> sizes,
                                                   const BatchStatistics& batch) const {
  std::vector<double> result;
  if (rewards.empty()) return result;
  for_each_group(rewards, sizes, [&](std::span<const double> group) {
    const GroupSpread spread = spread_of(group);
    const auto count = static_cast<double>(group.size());
    for (const double reward : group) {
      switch (kind_) {
        case AdvantageKind::kGroup: {
          const double centred = reward - spread.mean;
          result.push_back(scaling_ == Scaling::kNone ? centred
                                                      : centred / ((scaling_ == Scaling::kBatch
                                                                        ? batch.std
                                                                        : spread.std) +
                                                                   kGroupEpsilon));
          break;
        }
        case AdvantageKind::kLeaveOneOut:
          result.push_back(
              group.size() < 2 ? 0.0 : reward - (spread.sum - reward) / (count - 1));
          break;
        case AdvantageKind::kGroupWhitened:
          result.push_back((reward - spread.mean - batch.mean) / (batch.std + kWhitenedEpsilon));
          break;
      }
    }
  });
  return result;
}

}  // namespace longspan
