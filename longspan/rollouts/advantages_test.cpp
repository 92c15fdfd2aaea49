#include "longspan/rollouts/advantages.h"

#include <doctest/doctest.h>

#include <cmath>

#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

using doctest::Approx;

const std::vector<double> kRewards = {1, 2, 4, 5, 5, 5, 5};
const std::vector<int64_t> kSizes = {3, 4};

std::vector<double> advantages_by(const std::string& estimator, const std::string& scale) {
  PolicySettings settings;
  settings.advantage_estimator = estimator;
  settings.scale_rewards = scale;
  const AdvantageEstimator made(settings);
  return made.advantages(kRewards, kSizes, batch_statistics(made.for_batch(kRewards, kSizes)));
}

TEST_CASE("advantages: groups are centred and scaled by their own spread, the batch's, or none") {
  const double mean = 7.0 / 3, std = std::sqrt((16.0 / 9 + 1.0 / 9 + 25.0 / 9) / 2);
  const std::vector<double> group = advantages_by("grpo", "group");
  CHECK(group[0] == Approx((1 - mean) / (std + 1e-4)));
  CHECK(group[2] == Approx((4 - mean) / (std + 1e-4)));
  for (int i = 3; i < 7; ++i) CHECK(group[i] == 0);
  CHECK(advantages_by("grpo", "none")[1] == Approx(2 - mean));
  const double all = batch_statistics(kRewards).std;
  CHECK(advantages_by("grpo", "batch")[0] == Approx((1 - mean) / (all + 1e-4)));
}

TEST_CASE("advantages: the mean of the others, and centred rewards whitened over the batch") {
  const std::vector<double> others = advantages_by("rloo", "group");
  CHECK(others[0] == Approx(1 - 3.0));
  CHECK(others[2] == Approx(4 - 1.5));
  CHECK(others[3] == 0);
  const std::vector<double> whitened = advantages_by("reinforce_plus_plus_baseline", "group");
  double sum = 0, squares = 0;
  for (const double advantage : whitened) {
    sum += advantage;
    squares += advantage * advantage;
  }
  CHECK(sum == Approx(0));
  CHECK(squares / 6 == Approx(1).epsilon(1e-6));
}

TEST_CASE("advantages: spread of a group, and quantiles between numbers") {
  CHECK(spread_of(std::vector<double>{5, 5}).is_zero);
  CHECK_FALSE(spread_of(kRewards).is_zero);
  CHECK(spread_of(std::vector<double>{3}).std == 0);
  CHECK(quantile({4, 1, 3, 2}, 0.5) == Approx(2.5));
  CHECK(quantile({4, 1, 3, 2}, 1.0) == 4);
  CHECK(quantile({7}, 0.3) == 7);
}

}  // namespace
}  // namespace longspan
