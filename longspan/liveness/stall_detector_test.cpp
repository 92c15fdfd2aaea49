#include "longspan/liveness/stall_detector.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "longspan/comm/link.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

using Beats = std::vector<std::optional<Beat>>;
using std::chrono::minutes;
using std::chrono::seconds;

Beat beat_of(StartedCollectives collectives) {
  return {.host = "node7",
          .machine = "elsewhere",
          .process = 1234,
          .step = 7,
          .doing = "step 7",
          .reason = "",
          .collectives = std::move(collectives),
          .times = {}};
}

bool names(const std::string& found, int rank) {
  return found.find("Rank " + std::to_string(rank) + " (host") != std::string::npos;
}

TEST_CASE("stall detector: who has not come to a collective keeps the others waiting") {
  const Beats beats{
      beat_of({{"world0", 12}, {"sequence0", 57}}), beat_of({{"world0", 12}, {"sequence0", 56}}),
      beat_of({{"world0", 12}, {"sequence1", 9}}), beat_of({{"world0", 12}, {"sequence1", 9}})};
  CHECK(stragglers_of(beats) ==
        "Rank 1 (host node7, process 1234) has not come to collective 57 of the sequence group, "
        "where rank 0 waits, in step 7.");
  Beats later = beats;  // all have beaten since
  for (std::optional<Beat>& beat : later) ++beat->count;
  CHECK(diagnosis_of(beats, later, 0, "here") == "All ranks live. " + stragglers_of(beats));
  // Groups of different ranks have separate counts.
  CHECK(stragglers_of({beats[0], beats[2]}).empty());
  CHECK(stragglers_of({beats[0], std::nullopt}).empty());
}

TEST_CASE("stall detector: of ranks that wait for each other in a chain the last is named") {
  // 0 waits for 1 in one group, which waits for 2 in another.
  Beats beats{beat_of({{"sequence0", 5}}), beat_of({{"sequence0", 4}, {"data1", 3}}),
              beat_of({{"data1", 2}})};
  CHECK(names(stragglers_of(beats), 2));
  CHECK_FALSE(names(stragglers_of(beats), 1));
  // In a cycle all are named.
  beats[2]->collectives["slices0"] = 1;
  beats[0]->collectives["slices0"] = 0;
  for (const int rank : {0, 1, 2}) CHECK(names(stragglers_of(beats), rank));
}

TEST_CASE("stall detector: it finds one when nobody of these has moved for longer than the limit") {
  const StallDetector::Clock::time_point start{};
  const Beats stuck{beat_of({{"world0", 5}}), beat_of({{"world0", 4}})};
  StallDetector watched;
  CHECK(watched.check(stuck, start, seconds(10)).empty());
  CHECK(watched.check(stuck, start + seconds(5), seconds(10)).empty());
  CHECK(watched.check(stuck, start + seconds(10), seconds(10)).empty());
  CHECK(names(watched.check(stuck, start + seconds(11), seconds(10)), 1));
  // A rank that makes progress is not stuck, and does not wait.
  for (const size_t rank : {0, 1}) {
    Beats moved = stuck;
    ++moved[rank]->step;
    CHECK(watched.check(moved, start + seconds(12), seconds(10)).empty());
  }
  // Neither is a rank that is equally far (while one of them writes a model), or that has ended.
  StallDetector other;
  Beats ended = stuck;
  ended[1]->ending = Beat::Ending::kFinished;
  for (const Beats& beats : {Beats{stuck[0], stuck[0]}, ended}) {
    for (int second = 0; second < 60; second += 5) {
      CHECK(other.check(beats, start + seconds(second), seconds(10)).empty());
    }
  }
}

TEST_CASE("stall detector: silence is found in minutes, whatever ddp_timeout is") {
  const SilenceDetector::Clock::time_point start{};
  const Beats silent{beat_of({{"world0", 5}}), beat_of({{"world0", 4}})};
  SilenceDetector watched;
  const auto years = seconds(180000000);
  for (int minute = 0; minute <= 10; ++minute) {
    CHECK(watched.check(silent, 0, "here", start + minutes(minute), years).empty());
  }
  CHECK(names(watched.check(silent, 0, "here", start + minutes(11), years), 1));
}

TEST_CASE("stall detector: the store's silence, without the time of one's own pause") {
  const StoreSilence::Clock::time_point start = StoreSilence::Clock::now();
  StoreSilence watched;
  watched.answered(start);
  for (int second = 0; second <= 40; second += 4) {
    CHECK(watched.check(start + seconds(second), seconds(30)) == (second > 30));
  }
  // Requests to a silent store take longer than half of a short limit.
  CHECK(watched.check(start + seconds(58), seconds(30)));
  StoreSilence paused;
  paused.answered(start);
  const auto years = seconds(180000000);
  for (int minute = 6; minute <= 17; ++minute) {
    CHECK(paused.check(start + minutes(minute), years) == (minute > 16));
  }
}

TEST_CASE("stall detector: who has stood still himself has seen nothing meanwhile") {
  const StallDetector::Clock::time_point start{};
  const Beats stuck{beat_of({{"world0", 5}}), beat_of({{"world0", 4}})};
  const auto check = [&](auto& watched, int second) {
    if constexpr (std::is_same_v<std::decay_t<decltype(watched)>, SilenceDetector>) {
      return watched.check(stuck, 0, "here", start + seconds(second), seconds(10));
    } else {
      return watched.check(stuck, start + seconds(second), seconds(10));
    }
  };
  const auto watch = [&](auto watched) {
    for (const int second : {0, 5, 9}) CHECK(check(watched, second).empty());
    for (const int second : {20, 25, 30}) CHECK(check(watched, second).empty());
    CHECK(names(check(watched, 31), 1));
  };
  watch(StallDetector{});
  watch(SilenceDetector{});
}

TEST_CASE("stall detector: groups count what they start, and the counts go through the text") {
  std::vector<StartedCollectives> counts(2);
  testing::run_ranks(
      2,
      [&](const Mesh& mesh) {
        at::Tensor x = at::ones({2}, at::kFloat);
        const int64_t before = mesh.collectives->now().at("world0");
        mesh.world.sum_(x);
        mesh.world.barrier();
        mesh.world.broadcast_(x);
        mesh.world.all_gather(x).wait();
        mesh.world.shift({x}).wait_all();
        mesh.world.all_to_all(x).wait();
        mesh.world.exchange({}, {}, 1).wait_all();
        CHECK(mesh.collectives->now().at("world0") == before + 7);
        counts[static_cast<size_t>(mesh.world.rank())] = mesh.collectives->now();
      },
      testing::thread_link());
  CHECK(counts[0] == counts[1]);
  const Beat beat = beat_of({{"sequence1", 9}, {"world0", 12}});
  CHECK(beat_from(text_of(beat)) == beat);
  CHECK_FALSE(beat_from(text_of(beat) + "ring0"));
  CHECK_FALSE(beat_from(text_of(beat) + "world0 3"));
}

TEST_CASE("messages: of NCCL's all lines are kept, of Gloo's the first") {
  const std::runtime_error error(
      "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.28.9\n"
      "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
      "Cuda failure 2 'out of memory'\nException raised from create at NCCLUtils.cpp:94 (most "
      "recent call first):\nframe #0: c10::Error");
  CHECK(traits_of(Link::kNccl).reason_of(error) ==
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.28.9; "
        "ncclUnhandledCudaError: Call to CUDA function failed; Last error: Cuda failure 2 'out of "
        "memory'");
  const std::runtime_error quoted(
      "[PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: NCCL "
      "error: remote process exited\nLast error:\nlink down\nException raised from run at x.cpp:1\n"
      "frame #0\nException raised from throw at y.cpp:2");
  CHECK(traits_of(Link::kNccl).reason_of(quoted) ==
        "NCCL error: remote process exited; Last error: link down");
  const std::runtime_error gloo("[pair.cc:534] Connection closed by peer. \nadvice");
  CHECK(traits_of(Link::kGloo).reason_of(gloo) == "Connection closed by peer");
}

}  // namespace
}  // namespace longspan
