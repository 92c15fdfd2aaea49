#include "longspan/rollouts/advantages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "longspan/base/user_error.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr double kScaleEpsilon = 1e-4, kWhitenEpsilon = 1e-8;

/// Returns reward - baseline for each rollout.
std::vector<double> centered(const std::vector<double>& rewards, Baseline baseline) {
  if (baseline == Baseline::kNone) return rewards;
  const double mean = spread_of_rewards(rewards).mean;
  const auto n = static_cast<double>(rewards.size());
  // r - (n mean - r) / (n - 1) = (r - mean) n / (n - 1)
  const double factor = baseline == Baseline::kOthersMean ? n / (n - 1) : 1;
  std::vector<double> differences;
  for (const double reward : rewards) differences.push_back((reward - mean) * factor);
  return differences;
}

void require_enough(const RewardedGroup& group, const AdvantageEstimatorKind& kind) {
  const auto size = std::ssize(group.rewards);
  if (size >= kind.least_rollouts) return;
  throw UserError(fmt::format(
      "group \"{}\" has {}, and advantage_estimator: {} compares at least {}. Sample more answers "
      "to a prompt, or name another estimator.",
      shortened(group.name, 80), counted(size, "rollout"), kind.name, kind.least_rollouts));
}

/// Gives the advantages mean 0 and variance 1 over the trained tokens.
void whiten(std::vector<std::vector<double>>& advantages,
            const std::vector<RewardedGroup>& groups) {
  const auto weighted_mean = [&](auto of) {
    double sum = 0, total = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < advantages[g].size(); ++i) {
        const auto weight = static_cast<double>(groups[g].num_labels.at(i));
        sum += weight * of(advantages[g][i]);
        total += weight;
      }
    }
    return total > 0 ? sum / total : 0;
  };
  const double mean = weighted_mean([](double a) { return a; });
  const double variance = weighted_mean([&](double a) { return (a - mean) * (a - mean); });
  for (std::vector<double>& group : advantages) {
    for (double& a : group) a = (a - mean) / std::sqrt(variance + kWhitenEpsilon);
  }
}

void divide(std::vector<double>& numbers, double divisor) {
  for (double& number : numbers) number /= divisor;
}

}  // namespace

RewardSpread spread_of_rewards(const std::vector<double>& rewards) {
  const auto n = static_cast<double>(rewards.size());
  double shift = 0, squares = 0;
  for (const double reward : rewards) shift += reward - rewards.front();
  const double mean = rewards.front() + shift / n;
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  return {mean, rewards.size() < 2 ? 0 : std::sqrt(squares / (n - 1))};
}

BatchAdvantages advantages_of(const std::vector<RewardedGroup>& groups,
                              const AdvantageEstimatorKind& kind, RewardScale scale) {
  std::vector<double> all;
  for (const RewardedGroup& group : groups) {
    require_enough(group, kind);
    all.insert(all.end(), group.rewards.begin(), group.rewards.end());
  }
  BatchAdvantages batch;
  if (all.empty()) return batch;
  const bool is_scaled = kind.scale == AdvantageScale::kChosen;
  const bool of_batch = is_scaled && scale == RewardScale::kBatch;
  const RewardSpread whole = spread_of_rewards(all);
  int64_t num_without_spread = 0;
  for (const RewardedGroup& group : groups) {
    std::vector<double> advantages = centered(group.rewards, kind.baseline);
    const RewardSpread spread = of_batch ? whole : spread_of_rewards(group.rewards);
    if (is_scaled && scale != RewardScale::kNone) divide(advantages, spread.std + kScaleEpsilon);
    if (spread.is_zero()) num_without_spread += std::ssize(group.rewards);
    batch.of_groups.push_back(std::move(advantages));
  }
  if (kind.scale == AdvantageScale::kWhitened) whiten(batch.of_groups, groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (std::ranges::all_of(batch.of_groups[g], [](double a) { return std::isfinite(a); }))
      continue;
    throw UserError(
        fmt::format("group \"{}\": the rewards are too large for advantages; scale them down",
                    shortened(groups[g].name, 80)));
  }
  batch.zero_std_share = static_cast<double>(num_without_spread) / static_cast<double>(all.size());
  return batch;
}

double weighted_reward(const std::map<std::string, double>& rewards,
                       const std::map<std::string, double>& weights, const std::string& place) {
  double sum = 0;
  for (const auto& [name, weight] : weights) {
    const auto reward = rewards.find(name);
    if (reward == rewards.end()) {
      throw UserError(fmt::format("{}: the reward \"{}\" is missing", place, shortened(name, 80)));
    }
    sum += weight * reward->second;
  }
  for (const auto& [name, reward] : rewards) {
    if (weights.contains(name)) continue;
    throw UserError(fmt::format("{}: the reward \"{}\" has no weight", place, shortened(name, 80)));
  }
  return sum;
}

}  // namespace longspan
