#include "longspan/liveness/heartbeat.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "longspan/liveness/beat.h"
#include "longspan/liveness/notices.h"
#include "longspan/liveness/store_beats.h"
#include "longspan/testing/launcher.h"
#include "longspan/testing/relay.h"

namespace longspan {
namespace {

constexpr size_t kBytesOfBeat = 4000;

/// A rank whose process has ended. On another machine it is only silent.
struct Lost {
  int rank = 0;
  bool is_here = true;
  const char* said = "";
  // Ranks that were to read the beats in the place of rank 0, and are lost too.
  int num_readers = 0;
};

/// Heartbeats of all ranks but one. The ranks behind rank 0 reach the store by the relay.
std::vector<std::unique_ptr<Heartbeat>> heartbeats(const testing::Launcher& launcher,
                                                   const testing::Relay& relay, int num_ranks,
                                                   const Lost& lost) {
  std::vector<std::unique_ptr<Heartbeat>> beats;
  const pid_t child = ::fork();
  if (child == 0) _exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  Beat last = own_beat("step 7");
  last.process = child;
  if (!lost.is_here) last.machine = "another machine";
  launcher.set(std::string(kNoticesPrefix) + "/" + key_of_beat(lost.rank), text_of(last));
  for (int rank = 0; rank < num_ranks; ++rank) {
    beats.emplace_back();
    if (rank == lost.rank) continue;
    Rendezvous where = launcher.worker(rank, num_ranks);
    if (rank > 0) where.master_port = relay.port();
    beats.back() = std::make_unique<Heartbeat>(
        where, /*timeout_seconds=*/6, [](const std::string&) {}, [](const std::string&) {});
    beats.back()->stands_at(7, "step 7" + std::string(kBytesOfBeat, '.'));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::string key = std::string(kNoticesPrefix) + "/" + key_of_beat(rank);
    while (!launcher.has(key)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return beats;
}

TEST_CASE("heartbeat: one rank reads the beats for all ranks that ask") {
  constexpr int kRanks = 24, kAsking = kRanks - 2;
  // Rank 0, another rank if rank 0 is lost, or the next one if that rank is lost as well.
  for (const Lost& lost :
       {Lost{kRanks - 1, true, " has ended without a word"}, Lost{0, false, " is silent; "},
        Lost{0, false, " is silent; ", /*num_readers=*/1}}) {
    CAPTURE(lost.rank);
    CAPTURE(lost.num_readers);
    const testing::Launcher launcher;
    const testing::Relay relay(launcher.worker(0, kRanks).master_port);
    const auto beats = heartbeats(launcher, relay, kRanks, lost);
    if (lost.num_readers > 0) {
      launcher.set(std::string(kNoticesPrefix) + "/" + kDiagnosing,
                   std::to_string(lost.num_readers));
    }
    const int64_t before = relay.num_answer_bytes();
    std::vector<std::string> found(kRanks);
    std::vector<std::thread> askers;
    for (int rank = 1; rank <= kAsking; ++rank) {
      askers.emplace_back([&, rank] { found[rank] = beats[rank]->diagnosis(); });
    }
    for (std::thread& asker : askers) asker.join();
    for (int rank = 1; rank <= kAsking; ++rank) {
      CHECK(found[rank].starts_with("Rank " + std::to_string(lost.rank) + " (host "));
      CHECK(found[rank].find(lost.said) != std::string::npos);
    }
    // A reading of all beats by each rank that asks would be more than twice as much.
    CHECK(relay.num_answer_bytes() - before < kAsking * kRanks * int64_t{kBytesOfBeat} / 2);
  }
}

}  // namespace
}  // namespace longspan
