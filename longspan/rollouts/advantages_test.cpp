#include "longspan/rollouts/advantages.h"

#include <doctest/doctest.h>

#include <cmath>

#include "longspan/testing/dataset_folder.h"

namespace longspan {
namespace {

/// Two groups; the second has no spread.
std::vector<RewardedGroup> two_groups() {
  return {{"a", {1, 2, 6}, {2, 4, 6}}, {"b", {0.1, 0.1, 0.1}, {1, 1, 1}}};
}

BatchAdvantages made_advantages(const std::string& name, RewardScale scale = RewardScale::kGroup) {
  return advantages_of(two_groups(), advantage_estimator_named(name), scale);
}

using Numbers = std::vector<double>;

}  // namespace

TEST_CASE("advantages: known values of each estimator") {
  // Group a: mean 3, differences -2, -1, 3, std sqrt(14 / 2).
  const double std = std::sqrt(7.0) + 1e-4;
  CHECK(made_advantages("grpo").of_groups ==
        std::vector<Numbers>{{-2 / std, -1 / std, 3 / std}, {0, 0, 0}});
  for (const auto& advantages :
       {made_advantages("dr_grpo"), made_advantages("grpo", RewardScale::kNone)}) {
    CHECK(advantages.of_groups == std::vector<Numbers>{{-2, -1, 3}, {0, 0, 0}});
    CHECK(advantages.zero_std_share == 0.5);
  }
  CHECK(made_advantages("rloo").of_groups == std::vector<Numbers>{{-3, -1.5, 4.5}, {0, 0, 0}});
  CHECK(made_advantages("reward").of_groups == std::vector<Numbers>{{1, 2, 6}, {0.1, 0.1, 0.1}});
  // Over tokens: (2 (-2) + 4 (-1) + 6 (3) + 3 (0)) / 15 = 2 / 3; squares 66 / 15.
  const double mean = 2.0 / 3, scale = std::sqrt(66.0 / 15 - mean * mean + 1e-8);
  const Numbers whitened = made_advantages("reinforce_plus_plus_baseline").of_groups[0];
  for (size_t i = 0; i < 3; ++i) {
    CHECK(whitened[i] == doctest::Approx((Numbers{-2, -1, 3}[i] - mean) / scale).epsilon(1e-14));
  }
}

TEST_CASE("advantages: the standard deviation of the batch") {
  const BatchAdvantages batch = made_advantages("grpo", RewardScale::kBatch);
  const double std = spread_of_rewards({1, 2, 6, 0.1, 0.1, 0.1}).std;
  CHECK(batch.of_groups[0][2] == doctest::Approx(3 / (std + 1e-4)).epsilon(1e-15));
  CHECK(batch.zero_std_share == 0);
}

TEST_CASE("advantages: refusals name the group") {
  const auto complaint = [](const RewardedGroup& group, const char* name) -> std::string {
    try {
      advantages_of({group}, advantage_estimator_named(name), RewardScale::kGroup);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  for (const AdvantageEstimatorKind& kind : kAdvantageEstimators) {
    const std::string said = complaint({"g", {1}, {1}}, std::string(kind.name).c_str());
    CHECK(said.empty() == (kind.least_rollouts == 1));
  }
  CHECK_SAYS(complaint({"g", {1}, {1}}, "grpo"),
             "group \"g\" has 1 rollout, and advantage_estimator: grpo compares at least 2");
  CHECK_SAYS(complaint({"g", {1e308, -1e308}, {1, 1}}, "rloo"), "too large for advantages");
}

TEST_CASE("advantages: weights of several rewards") {
  CHECK(weighted_reward({{"a", 2}, {"b", 3}}, {{"a", 0.5}, {"b", -1}}, "r.jsonl, line 1") == -2);
  CHECK_THROWS_WITH_AS(weighted_reward({{"a", 2}}, {{"a", 1}, {"b", 1}}, "line 1"),
                       "line 1: the reward \"b\" is missing", UserError);
  CHECK_THROWS_WITH_AS(weighted_reward({{"a", 2}, {"b", 1}}, {{"a", 1}}, "line 1"),
                       "line 1: the reward \"b\" has no weight", UserError);
}

}  // namespace longspan
