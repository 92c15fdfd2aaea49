#include "longspan/comm/mesh.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/comm/backend.h"
#include "longspan/comm/link.h"
#include "longspan/cuda/cuda.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/store.h"
#include "longspan/testing/counted_store.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/silent_server.h"
#include "longspan/testing/thread_groups.h"

namespace longspan {
namespace {

TEST_CASE("mesh: ranks find each other through the store of rank 0") {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = plan.ulysses_size = 2;
  const int port = testing::free_port();
  std::vector<std::string> texts[2];
  std::vector<std::thread> ranks;
  for (int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      Rendezvous where;
      where.rank = rank;
      where.world_size = where.local_world_size = 2;
      where.master_port = port;
      texts[rank] = make_mesh(where, plan, Link::kGloo, 20)
                        .ulysses.gather_text(rank == 0 ? "rank 0" : "rank 1");
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(texts[0] == std::vector<std::string>{"rank 0", "rank 1"});
  CHECK(texts[1] == texts[0]);
}

TEST_CASE("mesh: a peer that never comes is an error that names the address") {
  ParallelPlan plan;
  plan.world_size = plan.data_size = 2;
  Rendezvous where;
  where.rank = 1;
  where.world_size = where.local_world_size = 2;
  where.master_port = testing::free_port();
  CHECK_THROWS_WITH_AS(make_mesh(where, plan, Link::kGloo, 1), doctest::Contains("127.0.0.1"),
                       CommunicationError);
}

TEST_CASE("mesh: ranks wait for others that they have not met only for a time") {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  CHECK(patience_to_meet(10) == seconds(10));
  CHECK(patience_to_meet(1800) == seconds(300));
  CHECK(while_meeting<int>(now() + seconds(60), [] { return 7; }) == 7);
  CHECK_THROWS_AS(while_meeting<int>(now() + seconds(60), []() -> int { throw UserError("plan"); }),
                  UserError);
  const auto hang = [] {
    for (;;) pause();
    return 7;
  };
  CHECK_THROWS_WITH_AS(while_meeting<int>(now() + milliseconds(50), hang),
                       doctest::Contains("not all of them answered in time"), CommunicationError);
  CHECK_THROWS_AS(while_meeting<int>(now() - seconds(1), hang), CommunicationError);
}

TEST_CASE("mesh: the time to connect begins once all ranks have come") {
  ParallelPlan plan;
  plan.world_size = plan.data_size = 2;
  const int port = testing::free_port();
  std::string errors[2];
  Mesh meshes[2];
  std::vector<std::thread> ranks;
  for (int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      // The wait for rank 1 and the time to connect are longer than one deadline of 2 + 2 s.
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1800));
      Rendezvous where;
      where.rank = where.local_rank = rank;
      where.world_size = where.local_world_size = 2;
      where.master_port = port;
      where.link = &testing::slow_thread_link();
      try {
        meshes[rank] = make_mesh(where, plan, Link::kGloo, /*timeout_seconds=*/2);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
}

// Returns the members of each group of each rank, in order.
std::vector<std::map<std::string, std::string>> members(const ParallelPlan& plan) {
  std::vector<std::map<std::string, std::string>> of_ranks(plan.world_size);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    auto& mine = of_ranks[mesh.world.rank()];
    const std::string name(1, static_cast<char>('0' + mesh.world.rank()));
    for (const auto& [kind, group] : {std::pair{"data", mesh.data},
                                      {"sequence", mesh.sequence},
                                      {"ring", mesh.ring},
                                      {"ulysses", mesh.ulysses},
                                      {"window", mesh.window},
                                      {"windows", mesh.windows},
                                      {"slices", mesh.slices}}) {
      if (group.size() == 1) continue;
      for (const std::string& member : group.gather_text(name)) mine[kind] += member;
    }
    const auto same = [&](const char* what, const Group& a, const Group& b) {
      if (a.size() > 1 && a == b) mine[what] = "same";
    };
    same("world=sequence", mesh.world, mesh.sequence);
    same("sequence=ring", mesh.sequence, mesh.ring);
    same("ring=windows", mesh.ring, mesh.windows);
    same("ring=window", mesh.ring, mesh.window);
    same("sequence=slices", mesh.sequence, mesh.slices);
  });
  return of_ranks;
}

TEST_CASE("mesh: windows of a ring beside Ulysses, two data-parallel groups") {
  ParallelPlan plan;
  plan.world_size = 16;
  plan.data_size = 2;
  plan.sequence_size = 8;
  plan.ulysses_size = 2;
  plan.ring_size = 4;
  plan.window_size = 2;
  // Ranks 10 to 15 are the characters behind 9: : ; < = > ?
  const auto of_ranks = members(plan);
  std::map<std::string, std::string> rank_5{{"data", "5="},   {"sequence", "01234567"},
                                            {"ring", "1357"}, {"ulysses", "45"},
                                            {"window", "57"}, {"windows", "15"}};
  CHECK(of_ranks[5] == rank_5);
  std::map<std::string, std::string> rank_8{{"data", "08"},   {"sequence", "89:;<=>?"},
                                            {"ring", "8:<>"}, {"ulysses", "89"},
                                            {"window", "8:"}, {"windows", "8<"}};
  CHECK(of_ranks[8] == rank_8);
}

TEST_CASE("mesh: groups of the same ranks are one group") {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = plan.ring_size = 4;
  auto of_ranks = members(plan);
  CHECK(of_ranks[2].contains("world=sequence"));
  CHECK(of_ranks[2].contains("sequence=ring"));
  CHECK(of_ranks[2].contains("ring=windows"));
  CHECK(!of_ranks[2].contains("window"));
  plan.window_size = 4;  // one window
  of_ranks = members(plan);
  CHECK(of_ranks[2].contains("ring=window"));
  CHECK(!of_ranks[2].contains("windows"));
  plan.window_size = plan.ring_size = 1;
  plan.ulysses_size = 4;
  plan.num_head_slices = 2;
  of_ranks = members(plan);
  CHECK(of_ranks[2].at("slices") == "23");
  plan.num_head_slices = 4;
  CHECK(members(plan)[2].contains("sequence=slices"));
}

TEST_CASE("mesh: ranks that planned differently all say so at once") {
  constexpr int kRanks = 3;
  const int port = testing::free_port();
  std::vector<std::string> errors(kRanks);
  std::vector<double> seconds(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      ParallelPlan plan;
      plan.world_size = plan.sequence_size = kRanks;
      (rank == 1 ? plan.ring_size : plan.ulysses_size) = kRanks;
      plan.method = rank == 1 ? method_named("zigzag-ring") : method_named("ulysses");
      Rendezvous where;
      where.rank = rank;
      where.world_size = where.local_world_size = kRanks;
      where.master_port = port;
      const auto begin = std::chrono::steady_clock::now();
      try {
        make_mesh(where, plan, Link::kGloo, /*timeout_seconds=*/60);
      } catch (const UserError& said) {
        errors[rank] = said.what();
      } catch (const CommunicationError& said) {
        errors[rank] = std::string("not the user's error: ") + said.what();
      }
      seconds[rank] =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    CAPTURE(rank);
    CHECK(errors[rank] == errors[0]);
    CHECK(seconds[rank] < 60);  // less than the patience with a missing rank
  }
  CHECK(errors[0].starts_with("The ranks would share rows"));
  CHECK(errors[0].find("rank 0: 3 processes, 3 by ulysses") != std::string::npos);
  CHECK(errors[0].find("rank 1: 3 processes, 3 by zigzag-ring") != std::string::npos);
  CHECK(errors[0].find("set sequence_parallel_mode") != std::string::npos);
}

TEST_CASE(
    "mesh: plans are compared with few questions to the store, and in all that makes groups") {
  constexpr int kRanks = 16;
  const auto errors_of = [&](c10d::Store& store, int other_rank) {
    std::vector<std::string> errors(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        ParallelPlan plan;
        plan.world_size = plan.data_size = kRanks;
        if (rank >= other_rank) plan.shard_size = 4;
        try {
          require_one_plan(store, rank, kRanks, plan, traits_of(Link::kGloo));
        } catch (const UserError& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return errors;
  };
  testing::CountedStore alike, different;
  CHECK(errors_of(alike.store(), kRanks) == std::vector<std::string>(kRanks));
  CHECK(alike.num_keys() <= 2 * kRanks);
  const std::vector<std::string> errors = errors_of(different.store(), 13);
  for (const std::string& error : errors) CHECK(error == errors[0]);
  CHECK(errors[0].find("; rank 13: 16 processes") != std::string::npos);
  CHECK(errors[0].find("shards of 4") != std::string::npos);
}

TEST_CASE("mesh: the address for others lies on the default route, not on the first interface") {
  // A machine whose own name is 127.0.1.1, with a network of containers before the one outside.
  constexpr const char* kMachine =
      "ip link set lo up && ip link add docker0 type veth peer name container && "
      "ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up && "
      "ip link set container up && ip link add outside type veth peer name router && "
      "ip addr add 198.51.100.7/24 dev outside && ip link set outside up && "
      "ip link set router up && ip route add default via 198.51.100.1";
  constexpr int kNotAllowed = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    const uid_t user = ::getuid();
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(kNotAllowed);
    std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";  // `ip` needs this user to be root
    if (std::system("ip link add probe type veth && ip link del probe") != 0) _exit(kNotAllowed);
    if (std::system(kMachine) != 0) _exit(2);
    Rendezvous where;
    where.world_size = 2;
    where.master_address = "127.0.1.1";
    _exit(own_address(where) == "198.51.100.7" ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) {
    MESSAGE("not run: this machine has no iproute2, or allows no network namespaces");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("cuda: asking is safe anywhere, using it without a GPU is the user's error") {
  if (!cuda_available()) {
    CHECK_THROWS_WITH_AS(load_cuda(), doctest::Contains("CPU"), UserError);
    CHECK_THROWS_WITH_AS(use_gpu(0, {}), doctest::Contains("CPU"), UserError);
    CHECK(!why_no_cuda().empty());
    CHECK(find_gpus().count == 0);
    CHECK(find_gpus().why_none == why_no_cuda());
  } else {
    const int num_devices = load_cuda().num_devices();
    CHECK(num_devices > 0);
    CHECK(why_no_cuda().empty());
    CHECK(find_gpus().count == num_devices);
    CHECK_NOTHROW(use_gpu(0, {}));
  }
}

}  // namespace
}  // namespace longspan
