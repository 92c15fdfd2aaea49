#include "longspan/bench/network_bench.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/bench/gather_numbers.h"
#include "longspan/comm/mesh.h"
#include "longspan/comm/network_links.h"
#include "longspan/plan/rank_groups.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kNetworkTimeoutSeconds = 600;  // of a collective
constexpr int64_t kSmall = 8;                    // bytes for each rank

/// Groups of the table, with the ranks of the mesh.
struct Measured {
  GroupKind kind;
  Group Mesh::* group;
};
constexpr Measured kMeasured[] = {
    {GroupKind::kWorld, &Mesh::world},       {GroupKind::kData, &Mesh::data},
    {GroupKind::kSequence, &Mesh::sequence}, {GroupKind::kRing, &Mesh::ring},
    {GroupKind::kUlysses, &Mesh::ulysses},   {GroupKind::kShard, &Mesh::shard},
    {GroupKind::kReplicas, &Mesh::replicas}};

/// Times collectives of a group, on all groups of a kind at once.
class Stopwatch {
 public:
  Stopwatch(const Mesh& mesh, at::Device device, int repeats)
      : world_(mesh.world), device_(device), repeats_(repeats) {}

  /// Returns the median of the repeats on the slowest rank; the first start connects the ranks.
  double seconds(const std::function<Pending()>& start) const {
    std::vector<double> tries;
    for (int i = 0; i <= repeats_; ++i) {
      wait_for_device(device_);
      world_.barrier();
      const Clock::time_point begin = Clock::now();
      start().wait_all();
      wait_for_device(device_);
      if (i > 0) tries.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::ranges::sort(tries);
    double slowest = 0;
    for (const auto& of_rank : gather_numbers(world_, {tries[tries.size() / 2]}, device_)) {
      slowest = std::max(slowest, of_rank[0]);
    }
    return slowest;
  }

 private:
  const Group& world_;
  at::Device device_;
  int repeats_;
};

GroupRates measured(const Group& group, const Stopwatch& watch, int64_t bytes, at::Device device) {
  const int P = group.size();
  const auto numbers = [&](int64_t count) {
    return at::zeros({count}, at::TensorOptions(device).dtype(at::kFloat));
  };
  const int64_t each = std::max<int64_t>(1, bytes / 4 / (P - 1));  // numbers for another rank
  const auto sent = static_cast<double>(each * 4 * (P - 1));
  const at::Tensor small = numbers(kSmall / 4 * P), whole = numbers(each * P), part = numbers(each),
                   one = numbers(bytes / 4);
  GroupRates rates;
  rates.num_ranks = P;
  rates.delay = watch.seconds([&] { return group.all_to_all(small); });
  rates.all_to_all = sent / watch.seconds([&] { return group.all_to_all(whole); });
  rates.all_gather = sent / watch.seconds([&] { return group.all_gather(part); });
  rates.reduce_scatter = sent / watch.seconds([&] { return group.reduce_scatter(whole); });
  rates.next_rank =
      static_cast<double>(one.nbytes()) / watch.seconds([&] { return group.shift({one}); });
  return rates;
}

/// Returns the number of machines of the group with most of them, and the number of groups.
std::pair<int, int> machines_of(GroupKind kind, const ParallelPlan& plan, int ranks_per_machine) {
  std::map<int, std::set<int>> machines;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    for (const RankGroup& group : groups_of_rank(plan, rank)) {
      if (group.kind == kind) machines[group.index].insert(rank / ranks_per_machine);
    }
  }
  size_t most = 0;
  for (const auto& [index, of_group] : machines) most = std::max(most, of_group.size());
  return {static_cast<int>(most), static_cast<int>(machines.size())};
}

}  // namespace

ParallelPlan plan_of(const NetworkBenchOptions& options, int num_ranks) {
  const int P = options.ulysses_size * options.ring_size;
  const auto require = [&](int size, const char* what) {
    if (size >= 1 && num_ranks % size == 0) return;
    throw UserError(
        fmt::format("bench network: {} {} must divide the {} processes", what, size, num_ranks));
  };
  require(P, "--ulysses-degree x --ring-degree =");
  require(options.shard_size, "--shard-size");
  ParallelPlan plan;
  plan.world_size = num_ranks;
  plan.sequence_size = P;
  plan.data_size = num_ranks / P;
  plan.ulysses_size = options.ulysses_size;
  plan.ring_size = options.ring_size;
  plan.shard_size = options.shard_size;
  return plan;
}

NetworkBenchResult run_network_bench(const NetworkBenchOptions& options, const Rendezvous& where,
                                     const BenchDevice& on) {
  const ParallelPlan plan = plan_of(options, where.world_size);
  const Mesh mesh =
      make_mesh(joined_start(where, kNetworkTimeoutSeconds), plan, on.link, kNetworkTimeoutSeconds);
  const int near = std::min(options.ranks_per_domain, plan.world_size);
  NetworkBenchResult result{.num_ranks = plan.world_size,
                            .ranks_per_machine = near,
                            .device = on.name,
                            .groups = {},
                            .rates = {},
                            .slow = {}};
  const Stopwatch watch(mesh, on.device, options.repeats);
  const std::vector<RankGroup> own = groups_of_rank(plan, where.rank);
  for (const Measured& one : kMeasured) {
    const auto place = std::ranges::find(own, one.kind, &RankGroup::kind);
    if (place->size == 1 || place->same_as) continue;
    GroupRates rates = measured(mesh.*one.group, watch, options.bytes, on.device);
    rates.name = place->name;
    std::tie(rates.num_machines, rates.num_groups) = machines_of(one.kind, plan, near);
    result.groups.push_back(std::move(rates));
  }
  const std::vector<int> distances = distances_of_links(plan.world_size, near, /*all=*/true);
  const auto links = [&](int64_t bytes) {
    return measure_links(mesh.world, near, distances, bytes, on.device, options.repeats);
  };
  LinkTimes large = links(options.bytes);
  const LinkTimes small = links(kSmall);
  result.places = large.places = places_of(near, where);
  result.rates = rates_of(large, small);
  result.rates.ranks_per_machine = near;
  result.rates.gpus = !on.device.is_cpu();
  result.slow = slow_links(large, mesh.world.gather_text(name_of_card(where, on.device)));
  shut_down(mesh);
  return result;
}

std::string network_table(const NetworkBenchResult& result) {
  std::string text = fmt::format(
      "{} processes, {} on a fast link, {}. GB/s that a process sends to others, on the slowest "
      "process:\n\n{:<10} {:>7} {:>6} {:>9} {:>9} {:>11} {:>11} {:>15} {:>10}\n",
      result.num_ranks, result.ranks_per_machine, result.device, "group", "groups", "ranks",
      "machines", "delay, us", "all-to-all", "all-gather", "reduce-scatter", "next rank");
  for (const GroupRates& group : result.groups) {
    text +=
        fmt::format("{:<10} {:>7} {:>6} {:>9} {:>9.0f} {:>11.3g} {:>11.3g} {:>15.3g} {:>10.3g}\n",
                    group.name, group.num_groups, group.num_ranks, group.num_machines,
                    1e6 * group.delay, group.all_to_all / 1e9, group.all_gather / 1e9,
                    group.reduce_scatter / 1e9, group.next_rank / 1e9);
  }
  const auto link = [&](const char* side, double bytes, double delay) {
    if (bytes > 0) {
      text += fmt::format("\nLinks {} {}: {:.3g} GB/s, {:.0f} us (median)", side, result.places,
                          bytes / 1e9, 1e6 * delay);
    }
  };
  link("within", result.rates.inside_bytes, result.rates.inside_delay);
  link("between", result.rates.between_bytes, result.rates.between_delay);
  for (const std::string& slow : result.slow) text += "\nwarning: " + slow;
  return text;
}

std::string network_json(const NetworkBenchResult& result) {
  nlohmann::ordered_json json;
  json["device"] = result.device;
  json["ranks"] = result.num_ranks;
  json["ranks_per_machine"] = result.ranks_per_machine;
  json["rates"] = json_of(result.rates);
  for (const GroupRates& group : result.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"groups", group.num_groups},
                              {"ranks", group.num_ranks},
                              {"machines", group.num_machines},
                              {"delay_seconds", group.delay},
                              {"all_to_all_bytes_per_second", group.all_to_all},
                              {"all_gather_bytes_per_second", group.all_gather},
                              {"reduce_scatter_bytes_per_second", group.reduce_scatter},
                              {"next_rank_bytes_per_second", group.next_rank}});
  }
  json["slow"] = result.slow;
  return json.dump(2) + "\n";
}

}  // namespace longspan
