#include "longspan/plan/rank_layout.h"

#include <doctest/doctest.h>

#include <functional>

namespace longspan {
namespace {

ParallelPlan plan_of(int world, int ring, int ulysses, int shard) {
  ParallelPlan plan;
  plan.world_size = world;
  plan.sequence_size = ring * ulysses;
  plan.data_size = world / plan.sequence_size;
  plan.ring_size = ring;
  plan.ulysses_size = ulysses;
  plan.shard_size = shard;
  return plan;
}

std::vector<RankMachine> machines_of(int world, const std::function<int(int rank)>& machine) {
  std::vector<RankMachine> machines;
  for (int rank = 0; rank < world; ++rank) {
    machines.push_back(
        {"boot" + std::to_string(machine(rank)), "node" + std::to_string(machine(rank))});
  }
  return machines;
}

TEST_CASE("rank layout: ranks machine by machine need no warning") {
  const auto blocks = machines_of(16, [](int rank) { return rank / 8; });
  CHECK(warning_of_layout(plan_of(16, 2, 8, 8), blocks, 8).empty());
  CHECK(warning_of_layout(plan_of(16, 1, 16, 16), blocks, 8).empty());   // no place for neighbours
  CHECK(warning_of_layout(plan_of(16, 1, 16, 16), blocks, 16).empty());  // a domain of two machines
}

TEST_CASE("rank layout: ranks in turns are named with their groups and the launchers' options") {
  const auto turns = machines_of(16, [](int rank) { return rank % 2; });
  const std::string warning = warning_of_layout(plan_of(16, 2, 8, 4), turns, 8);
  for (const char* part : {"node0 has the ranks 0, 2, 4, 6, 8, 10, 12, 14",
                           "2 of 2 ulysses groups and 4 of 4 shard", "srun --distribution=block"}) {
    CHECK(warning.find(part) != std::string::npos);
  }
  CHECK(warning_of_layout(plan_of(16, 16, 1, 1), turns, 8).empty());  // rings span all anyway
}

TEST_CASE("rank layout: machines with different numbers of processes") {
  const auto uneven = machines_of(12, [](int rank) { return rank < 4 ? 0 : 1; });
  const std::string warning = warning_of_layout(plan_of(12, 2, 6, 1), uneven, 6);
  CHECK(warning.find("node0 has 4") != std::string::npos);
  CHECK(warning.find("1 of 2 ulysses groups") != std::string::npos);
  CHECK(warning.find("fast_domain_size") != std::string::npos);
  CHECK(warning_of_layout(plan_of(12, 3, 4, 1), uneven, 4).empty());
}

}  // namespace
}  // namespace longspan
