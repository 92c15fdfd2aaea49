#include "longspan/plan/rank_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "longspan/plan/rank_groups.h"

namespace longspan {
namespace {

constexpr size_t kMostShownRanks = 8;

/// The places of one group's ranks.
struct Places {
  std::set<int> domains;           // by the plan
  std::set<std::string> machines;  // in fact
};

/// Returns the groups that the plan takes for neighbours and that lie on several machines, e.g. "4
/// of 4 groups for Ulysses".
std::vector<std::string> spread_groups(const ParallelPlan& plan,
                                       const std::vector<RankMachine>& machines,
                                       int ranks_per_domain) {
  std::vector<std::string> spread;
  for (size_t kind = 0; kind < groups_of_rank(plan, 0).size(); ++kind) {
    std::map<int, Places> groups;
    std::string_view name;
    for (int rank = 0; rank < plan.world_size; ++rank) {
      const RankGroup group = groups_of_rank(plan, rank)[kind];
      if (group.same_as || group.size == 1) break;
      name = group.name;
      groups[group.index].domains.insert(rank / ranks_per_domain);
      groups[group.index].machines.insert(machines[static_cast<size_t>(rank)].id);
    }
    std::erase_if(groups, [](const auto& group) { return group.second.domains.size() > 1; });
    const auto num_spread = std::ranges::count_if(
        groups, [](const auto& group) { return group.second.machines.size() > 1; });
    if (num_spread > 0) {
      spread.push_back(fmt::format("{} of {} {} groups", num_spread, groups.size(), name));
    }
  }
  return spread;
}

}  // namespace

std::string warning_of_layout(const ParallelPlan& plan, const std::vector<RankMachine>& machines,
                              int ranks_per_domain) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    ranks_of[machines[static_cast<size_t>(rank)].id].push_back(rank);
  }
  const auto is_apart = [](const auto& machine) {
    return machine.second.back() - machine.second.front() + 1 != std::ssize(machine.second);
  };
  const auto apart = std::ranges::find_if(ranks_of, is_apart);
  const auto smallest = std::ranges::min_element(
      ranks_of, {}, [](const auto& machine) { return machine.second.size(); });
  // A domain of several machines is a statement of the user.
  if (apart == ranks_of.end() && ranks_per_domain > std::ssize(smallest->second) &&
      ranks_per_domain % std::ssize(smallest->second) == 0) {
    return "";
  }
  const std::vector<std::string> spread = spread_groups(plan, machines, ranks_per_domain);
  if (spread.empty()) return "";
  if (apart == ranks_of.end()) {
    const int first = smallest->second.front();
    return fmt::format(
        "The machines have different numbers of processes ({} has {}), and {} lie on several "
        "machines: they exchange over the network. Set fast_domain_size to a number of processes "
        "that divides every machine's.",
        machines[static_cast<size_t>(first)].host, smallest->second.size(),
        fmt::join(spread, " and "));
  }
  std::vector<int> shown = apart->second;
  const bool more = shown.size() > kMostShownRanks;
  if (more) shown.resize(kMostShownRanks);
  return fmt::format(
      "The ranks of a machine are no neighbours ({} has the ranks {}{}), so {} lie on several "
      "machines and exchange over the network. Start the processes machine by machine: srun "
      "--distribution=block, mpirun --map-by slot, or torchrun on each machine.",
      machines[static_cast<size_t>(shown.front())].host, fmt::join(shown, ", "),
      more ? ", ..." : "", fmt::join(spread, " and "));
}

}  // namespace longspan
