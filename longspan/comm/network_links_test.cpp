#include "longspan/comm/network_links.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <mutex>
#include <string>
#include <vector>

#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

constexpr int kRanks = 8, kNear = 2;

/// Links at the distances of a short measurement, in 1 ms each.
LinkTimes even_times() {
  LinkTimes times{.num_ranks = kRanks,
                  .ranks_per_machine = kNear,
                  .bytes = 1 << 20,
                  .seconds = std::vector<double>(kRanks * kRanks)};
  for (const int distance : distances_of_links(kRanks, kNear, /*all=*/false)) {
    for (int from = 0; from < kRanks; ++from) {
      times.seconds[from * kRanks + (from + distance) % kRanks] = 1e-3;
    }
  }
  return times;
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (int rank = 0; rank < kRanks; ++rank) {
    names.push_back(fmt::format("host h{}, GPU {}", rank / kNear, rank % kNear));
  }
  return names;
}

TEST_CASE("network links: distances from each machine to others, or all") {
  CHECK(distances_of_links(8, 2, false) == std::vector<int>{2, 4});
  CHECK(distances_of_links(128, 8, false) == std::vector<int>{8, 16, 32, 64});
  CHECK(distances_of_links(4, 2, true) == std::vector<int>{1, 2, 3});
  CHECK(distances_of_links(4, 4, false).empty());
}

TEST_CASE("network links: a slow card is named once, a slow link by its ends, and nothing else") {
  CHECK(slow_links(even_times(), names()).empty());

  LinkTimes of_card = even_times();
  for (int other = 0; other < kRanks; ++other) {
    of_card.seconds[5 * kRanks + other] *= 10;
    of_card.seconds[other * kRanks + 5] *= 10;
  }
  CHECK(slow_links(of_card, names()) ==
        std::vector<std::string>{
            "slow network: rank 5 (host h2, GPU 1) exchanges 1.0 MiB with other ranks at 0.105 "
            "GB/s; the median of links between machines is 1.05 GB/s. Check this card, its cable "
            "and its switch."});

  of_card.places = "fast domains";
  CHECK(slow_links(of_card, names())[0].find("links between fast domains is") != std::string::npos);

  LinkTimes of_link = even_times();
  of_link.seconds[1 * kRanks + 3] *= 2.5;
  of_link.seconds[4 * kRanks + 6] *= 1.9;
  CHECK(slow_links(of_link, names()) ==
        std::vector<std::string>{"slow network: the link from rank 1 (host h0, GPU 1) to rank 3 "
                                 "(host h1, GPU 1) has 0.419 GB/s; the median of links between "
                                 "machines is 1.05 GB/s."});

  of_link.seconds[0 * kRanks + 2] *= 3;
  const std::vector<std::string> one = slow_links(of_link, names(), /*most=*/1);
  REQUIRE(one.size() == 2);
  CHECK(one[1] == "slow network: 1 more such links");
}

TEST_CASE("network links: links of all ranks are measured, and all ranks know them") {
  std::mutex mutex;
  std::vector<LinkTimes> of_ranks;
  testing::run_ranks(6, [&](const Mesh& mesh) {
    const std::vector<int> distances = distances_of_links(6, 2, /*all=*/true);
    const LinkTimes times = measure_links(mesh.world, 2, distances, 4096, at::kCPU, 2);
    const std::lock_guard lock(mutex);
    of_ranks.push_back(times);
  });
  REQUIRE(of_ranks.size() == 6);
  for (const LinkTimes& times : of_ranks) {
    CHECK(times.seconds == of_ranks[0].seconds);
    for (int from = 0; from < 6; ++from) {
      for (int to = 0; to < 6; ++to) {
        CHECK((times.of(from, to) > 0) == (from != to));
        CHECK(times.of(from, to) < 20);
      }
    }
    const NetworkRates rates = rates_of(times, times);
    CHECK(rates.inside_bytes == 4096 / rates.inside_delay);
    CHECK(rates.between_bytes == 4096 / rates.between_delay);
  }
}

TEST_CASE("network links: machines are measured at the start, and one machine is not") {
  int64_t num_messages = 0;  // bytes of messages in the run's own group
  const auto lines = [&](int ranks_per_machine, int fast_domain = 0) {
    std::mutex mutex;
    std::vector<std::string> of_rank_0;
    testing::run_ranks(4, [&](const Mesh& mesh) {
      Rendezvous where;
      where.rank = mesh.world.rank();
      where.world_size = 4;
      where.local_world_size = ranks_per_machine;
      // -1: the first machine has one rank more than the second.
      const int near = fast_domain < 0   ? (where.rank == 3 ? 1 : 3)
                       : fast_domain > 0 ? fast_domain
                                         : ranks_per_machine;
      const auto own = check_network(mesh, where, near, at::kCPU);
      const std::lock_guard lock(mutex);
      num_messages += mesh.world.traffic().all_to_all;
      if (where.rank == 0) of_rank_0 = own;
    });
    return of_rank_0;
  };
  CHECK(lines(4).empty());
  const std::vector<std::string> two = lines(2);
  REQUIRE_FALSE(two.empty());
  CHECK(two[0].starts_with("Network between machines: "));
  CHECK(two[0].ends_with("(medians of 4 links)"));
  CHECK(num_messages == 0);
  // Links within a machine are among those between fast domains.
  const std::vector<std::string> domains = lines(4, /*fast_domain=*/2);
  REQUIRE_FALSE(domains.empty());
  CHECK(domains[0].starts_with("Network between fast domains: "));
  const std::vector<std::string> uneven = lines(2, /*fast_domain=*/-1);
  REQUIRE(uneven.size() == 1);
  CHECK(uneven[0].starts_with("The network is not measured: machines have different numbers of "));
  CHECK(uneven[0].find(" has 3, ") != std::string::npos);
}

}  // namespace
}  // namespace longspan
