// Agreements and waits of ranks through a store. The ranks are workers of a launcher, as threads.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/liveness/beat.h"
#include "longspan/liveness/heartbeat.h"
#include "longspan/liveness/notices.h"
#include "longspan/liveness/store_beats.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/testing/launcher.h"
#include "longspan/testing/relay.h"
#include "longspan/testing/silent_server.h"

namespace longspan {
namespace {

using testing::Launcher;
using Clock = std::chrono::steady_clock;

std::string alarm_key() { return std::string(kNoticesPrefix) + "/" + kAlarm; }

/// Runs `body` for each rank in a thread.
void in_threads(int num_ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::string> joined(const Launcher& launcher, int num_ranks, int64_t timeout = 20) {
  std::vector<std::string> names(num_ranks);
  in_threads(num_ranks, [&](int rank) {
    // Workers start in any order, and at different times.
    std::this_thread::sleep_for(std::chrono::milliseconds(40 * ((rank + 2) % num_ranks)));
    try {
      names[rank] = joined_start(launcher.worker(rank, num_ranks), timeout).store_prefix;
    } catch (const CommunicationError& error) {
      names[rank] = error.what();
    }
  });
  return names;
}

}  // namespace

TEST_CASE("start: its workers have a name in common that no other start has") {
  const Launcher launcher;
  const std::vector<std::string> first = joined(launcher, 3);
  CHECK(first[0].starts_with("/start/"));
  CHECK(first == std::vector<std::string>(3, first[0]));

  // An incomplete start misleads no later one. On a busy machine rank 1 may come too late for a
  // short patience.
  constexpr const char* kWhoIsMissing = "rank 2 did not come";
  std::vector<std::string> lost(3);
  for (int64_t patience = 1; patience <= 32 && lost[0].find(kWhoIsMissing) == std::string::npos;
       patience *= 2) {
    in_threads(3, [&](int rank) {
      if (rank == 2) return;
      try {
        joined_start(launcher.worker(rank, 3), patience);
      } catch (const CommunicationError& error) {
        lost[rank] = error.what();
      }
    });
  }
  CAPTURE(lost[0]);
  CHECK(lost[0].find(kWhoIsMissing) != std::string::npos);

  const std::vector<std::string> second = joined(launcher, 3);
  CHECK(second == std::vector<std::string>(3, second[0]));
  CHECK(second[0] != first[0]);
  CHECK(second[0].starts_with("/start/"));

  Rendezvous alone = launcher.worker(1, 3);
  alone.launcher_hosts_store = false;
  CHECK(joined_start(alone, 1).store_prefix.empty());
}

TEST_CASE("notices: all wait for the slowest, until the alarm") {
  const Launcher launcher;
  constexpr int kRanks = 3;
  std::atomic<int> num_arrived = 0;
  std::atomic<bool> raised = false;
  std::vector<int> seen(kRanks), saw_alarm(kRanks);
  std::jthread alarm;
  in_threads(kRanks, [&](int rank) {
    Notices notices(launcher.worker(rank, kRanks));
    for (int meeting = 0; meeting < 4; ++meeting) {
      if (rank == meeting % kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      ++num_arrived;
      notices.wait_for_all();
      if (num_arrived < kRanks * (meeting + 1)) ++seen[rank];  // not all had arrived
    }
    if (rank == 2) return;  // never comes; the alarm is raised
    if (rank == 0) {
      alarm = std::jthread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        raised = true;
        launcher.set(alarm_key(), "somebody is gone");
      });
    }
    notices.wait_for_all();
    saw_alarm[rank] = raised;
  });
  CHECK(seen == std::vector<int>(kRanks, 0));
  CHECK(saw_alarm == std::vector<int>{1, 1, 0});
}

TEST_CASE("notices: an alarm that is taken back ends no wait") {
  const Launcher launcher;
  std::atomic<bool> has_come = false, waited = false;
  std::thread rank_0([&] {
    Notices notices(launcher.worker(0, 2));
    notices.wait_for_all();
    waited = has_come.load();
  });
  launcher.set(alarm_key(), "somebody is late");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  launcher.remove(alarm_key());
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  has_come = true;
  Notices(launcher.worker(1, 2)).wait_for_all();
  rank_0.join();
  CHECK(waited);
}

TEST_CASE("notices: a question that the store has heard twice ends no meeting early") {
  const Launcher launcher;
  testing::Relay relay(launcher.worker(0, 2).master_port);
  Rendezvous far = launcher.worker(1, 2);
  far.master_port = relay.port();
  Notices near_one(launcher.worker(0, 2)), far_one(far);
  std::atomic<int> num_come = 0;
  std::vector<int> seen;
  std::thread other([&] {
    for (int meeting = 0; meeting < 3; ++meeting) {
      if (meeting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ++num_come;
      near_one.wait_for_all();
    }
  });
  far_one.wait_for_all();
  for (int meeting = 1; meeting < 3; ++meeting) {
    // A question is asked again by a new connection: for its own key, or for the count of those
    // here.
    relay.lose_an_answer(/*number=*/meeting);
    far_one.wait_for_all();
    seen.push_back(num_come);
  }
  other.join();
  CHECK(seen == std::vector<int>{2, 3});
  CHECK(relay.num_lost() == 2);
}

TEST_CASE("notices: without the store nobody waits") {
  // Ranks meet twenty times. Waiting for the store would take half a minute each time.
  constexpr int kRanks = 2, kMeetings = 20;
  const auto meet = [](const std::function<Rendezvous(int)>& worker, const auto& after_the_first) {
    std::vector<double> waited(kRanks);
    std::barrier<> together(kRanks);
    in_threads(kRanks, [&](int rank) {
      Notices notices(worker(rank), /*timeout_seconds=*/1800);
      notices.wait_for_all();
      together.arrive_and_wait();
      if (rank == 0) after_the_first();
      together.arrive_and_wait();
      const Clock::time_point start = Clock::now();
      for (int meeting = 0; meeting < kMeetings; ++meeting) notices.wait_for_all();
      notices.announce_stop("nobody hears it");
      waited[rank] = std::chrono::duration<double>(Clock::now() - start).count();
    });
    return *std::ranges::max_element(waited);
  };
  std::optional<Launcher> launcher(std::in_place);
  const double lost =
      meet([&](int rank) { return launcher->worker(rank, kRanks); }, [&] { launcher.reset(); });
  CHECK(lost < 60.0);

  // Another server has taken the port and accepts all connections.
  const testing::SilentServer server;
  const Launcher other;
  Rendezvous silent = other.worker(0, kRanks);
  silent.master_port = server.port();
  const Clock::time_point start = Clock::now();
  Notices notices(silent, /*timeout_seconds=*/4);
  for (int meeting = 0; meeting < kMeetings; ++meeting) notices.wait_for_all();
  CHECK(std::chrono::duration<double>(Clock::now() - start).count() < 60.0);
}

TEST_CASE("notices: who leaves a silent store is not waited for there, and comes back to it") {
  const Launcher launcher;
  testing::Relay relay(launcher.worker(0, 2).master_port);
  Rendezvous far = launcher.worker(1, 2);
  far.master_port = relay.port();
  Notices near_one(launcher.worker(0, 2), /*timeout_seconds=*/20),
      far_one(far, /*timeout_seconds=*/20);
  /// Whether the far rank has waited for the near one, which comes half a second later.
  const auto meet = [&] {
    std::atomic<bool> has_come = false;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      has_come = true;
      near_one.wait_for_all();
    });
    far_one.wait_for_all();
    const bool waited = has_come;
    other.join();
    return waited;
  };
  CHECK(meet());

  relay.hold(true);
  std::atomic<bool> has_left = false;
  std::thread waiting([&] {
    near_one.wait_for_all();
    has_left = true;
  });
  far_one.wait_for_all();
  CHECK_FALSE(has_left);
  relay.hold(false);
  const Clock::time_point end = Clock::now() + std::chrono::seconds(60);
  while (!has_left && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(has_left);
  if (!has_left) launcher.set(alarm_key(), "ends this test");
  waiting.join();

  bool waits_again = false;
  while (!waits_again && Clock::now() < end) waits_again = meet();
  CHECK(waits_again);
}

TEST_CASE("heartbeat: a launcher that has ended is noticed, and the run gets its time to save") {
  std::optional<Launcher> launcher(std::in_place);
  std::mutex mutex;
  std::condition_variable told;
  bool told_of_launcher = false;
  std::string end;
  Heartbeat heartbeat(
      launcher->worker(0, 2), /*timeout_seconds=*/1,
      [&](const std::string& message) {
        const std::lock_guard lock(mutex);
        end = message;
        told.notify_all();
      },
      [](const std::string&) {},
      [&] {
        const std::lock_guard lock(mutex);
        told_of_launcher = true;
        return true;
      });
  launcher.reset();
  std::unique_lock lock(mutex);
  REQUIRE(told.wait_for(lock, std::chrono::seconds(60), [&] { return !end.empty(); }));
  CHECK(told_of_launcher);
  CHECK(end.find("The launcher, which served") == 0);
  CHECK(end.find("could not save and end within ddp_timeout") != std::string::npos);
}

TEST_CASE("heartbeat: takes its alarm back when a silent rank gives signs of life again") {
  const Launcher launcher;
  std::atomic<bool> ended = false;
  const Heartbeat watching(
      launcher.worker(0, 2), /*timeout_seconds=*/1, [&](const std::string&) { ended = true; },
      [](const std::string&) {});
  Beat beat;
  beat.machine = "another";
  /// Plays rank 1, which beats ten times a second or not at all, until the alarm is as wanted.
  const auto is_alarmed = [&](bool wanted, bool beats) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(60);
    while (launcher.has(alarm_key()) != wanted && !ended && Clock::now() < end) {
      if (beats) ++beat.count;
      launcher.set(std::string(kNoticesPrefix) + "/beat1", text_of(beat));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return launcher.has(alarm_key());
  };
  CHECK(is_alarmed(true, /*beats=*/false));
  CHECK_FALSE(is_alarmed(false, /*beats=*/true));
  CHECK_FALSE(ended);
}

TEST_CASE("heartbeat: a rank that is gone has been where all were, whatever its last beat says") {
  const Launcher launcher;
  Heartbeat heartbeat(
      launcher.worker(1, 2), /*timeout_seconds=*/8, [](const std::string&) {},
      [](const std::string&) {});
  Beat beat;  // the rank's thread had no time for another beat
  beat.host = "node7";
  beat.machine = "another";
  beat.process = 1234;
  beat.doing = "set-up";
  launcher.set(std::string(kNoticesPrefix) + "/beat0", text_of(beat));
  heartbeat.stands_at(7, "step 7");
  heartbeat.stands_at(8, "step 8");
  const std::string found = heartbeat.diagnosis();
  CAPTURE(found);
  CHECK(found.starts_with(
      "Rank 0 (host node7, process 1234) is silent; its last sign of life was in step 7."));
}

TEST_CASE("notices: a stop is announced to all") {
  const Launcher launcher;
  std::mutex mutex;
  std::string heard;
  std::condition_variable told;
  {
    Heartbeat other(
        launcher.worker(0, 2), /*timeout_seconds=*/20, [](const std::string&) {},
        [&](const std::string& why) {
          const std::lock_guard lock(mutex);
          heard = why;
          told.notify_all();
        });
    CHECK(other.stop_notice().empty());
    Notices(launcher.worker(1, 2)).announce_stop("rank 1 got SIGTERM");
    std::unique_lock lock(mutex);
    CHECK(told.wait_for(lock, std::chrono::seconds(60), [&] { return !heard.empty(); }));
    CHECK(heard == "rank 1 got SIGTERM");
    CHECK(other.stop_notice() == heard);
  }
  Notices alone(launcher.worker(0, 1));
  alone.wait_for_all();
  alone.announce_stop("nobody is there");
}

/// A rank whose Rendezvous says that rank 0 serves the store. Here the launcher serves it.
Rendezvous of_own_store(const Launcher& launcher, int rank) {
  Rendezvous where = launcher.worker(rank, 2);
  where.launcher_hosts_store = false;
  return where;
}

TEST_CASE("notices: the store does not end with its rank before all have heard of the stop") {
  const Launcher launcher;
  testing::Relay relay(launcher.worker(0, 2).master_port);
  Rendezvous near = of_own_store(launcher, 0);
  near.master_port = relay.port();
  std::thread rank_0([&] {
    Notices notices(near);
    notices.all_have_met();
    notices.announce_stop("rank 0 got SIGTERM");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  // A machine that is busy for seven seconds: the store answers nobody, and the other rank hears
  // nothing.
  relay.hold(true);
  std::this_thread::sleep_for(std::chrono::seconds(7));
  relay.hold(false);
  const Heartbeat late(
      of_own_store(launcher, 1), /*timeout_seconds=*/20, [](const std::string&) {},
      [](const std::string&) {});
  rank_0.join();
  CHECK(late.stop_notice() == "rank 0 got SIGTERM");
}

TEST_CASE("notices: who has ended is not waited for") {
  const Launcher launcher;
  Notices notices(of_own_store(launcher, 0), /*timeout_seconds=*/1800);
  notices.all_have_met();
  Beat beat = own_beat("set-up");
  SUBCASE("by itself") { beat.ending = Beat::Ending::kFailed; }
  SUBCASE("killed") {
    const pid_t child = ::fork();
    if (child == 0) _exit(0);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    beat.process = child;
  }
  launcher.set(std::string(kNoticesPrefix) + "/" + key_of_beat(1), text_of(beat));
  notices.announce_stop("rank 1 has ended");
}

}  // namespace longspan
