#include "cli/process/end_process.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/process/interrupt_watch.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/testing/ended_process.h"

namespace longspan {

TEST_CASE("end at once: an action that hangs, as on a dead disk, does not keep the process") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const EndAtOnce hangs([] {
      for (;;) ::pause();
    });
    end_process_at_once(7);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int status = 0;
  pid_t ended = 0;
  while (ended == 0 && std::chrono::steady_clock::now() < end) {
    ended = ::waitpid(child, &status, WNOHANG);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (ended == 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  CHECK(ended == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("end at once: who finds others gone once all is saved ends as if they were there") {
  const auto end_of = [](RunEnd end) {
    return ended_process([end] {
      auto& interrupts = *new InterruptWatch(/*speaks=*/false);
      interrupts.all_saved(end);
      interrupts.lost_others("rank 1 is gone");
      _exit(7);
    });
  };
  CHECK(WEXITSTATUS(end_of(RunEnd::kDone).status) == 0);
  CHECK(WEXITSTATUS(end_of(RunEnd::kInterrupted).status) == kInterruptedStatus);
}

TEST_CASE("end at once: a run that only answers ends as interrupted if it is told to stop early") {
  const auto end_of = [](bool trains) {
    return ended_process([trains] {
      auto& interrupts = *new InterruptWatch(/*speaks=*/false, trains);
      interrupts.stopped_early("SIGTERM");
      _exit(7);
    });
  };
  CHECK(WEXITSTATUS(end_of(true).status) == 0);
  CHECK(WEXITSTATUS(end_of(false).status) == kInterruptedStatus);
}

}  // namespace longspan
