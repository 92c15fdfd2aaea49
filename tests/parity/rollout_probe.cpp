// Prints advantages for the Python tests. stdin: {"estimator", "scale", "rewards": a list of lists,
// by group}. stdout: {"advantages": a list of lists, "zero_std_share"}.
#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/rollouts/advantages.h"

int main() {
  using namespace longspan;
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const nlohmann::json request = nlohmann::json::parse(text);
  std::vector<RewardedGroup> groups;
  for (const auto& rewards : request.at("rewards")) {
    RewardedGroup& group = groups.emplace_back();
    group.rewards = rewards.get<std::vector<double>>();
    group.num_labels.assign(group.rewards.size(), 1);
  }
  const BatchAdvantages batch =
      advantages_of(groups, advantage_estimator_named(request.at("estimator").get<std::string>()),
                    reward_scale_named(request.at("scale").get<std::string>()));
  const nlohmann::json answer = {{"advantages", batch.of_groups},
                                 {"zero_std_share", batch.zero_std_share}};
  fmt::print("{}\n", answer.dump());
}
