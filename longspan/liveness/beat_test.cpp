#include "longspan/liveness/beat.h"

#include "longspan/files/process_identity.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace longspan {
namespace {

using Beats = std::vector<std::optional<Beat>>;

Beat beat_of(int64_t count, int64_t step, const char* machine = "elsewhere") {
  return {.count = count,
          .host = "node7",
          .machine = machine,
          .process = 1234,
          .step = step,
          .doing = "step " + std::to_string(step),
          .reason = "",
          .collectives = {},
          .times = {}};
}

}  // namespace

TEST_CASE("beats: text and back") {
  Beat beat = beat_of(3, 7);
  beat.times = {.steps = 7, .seconds = 12.1 / 3, .waited = 1e-9};
  beat.ending = Beat::Ending::kFailed;
  beat.reason = "out of\nmemory";
  Beat wanted = beat;
  wanted.reason = "out of memory";
  CHECK(beat_from(text_of(beat)) == wanted);
  CHECK(beat_from(text_of(beat_of(1, 0))) == beat_of(1, 0));
  for (const char* text : {"", "3", "3\nhost\nmachine\nx\n0\nstep\n0\n", "a\nb\nc\n1\n2\nd\n0"}) {
    CHECK_FALSE(beat_from(text));
  }
  CHECK_FALSE(beat_from("7\nhost\nmachine\n12\n5\nstep 5\n57\n"));  // no such ending
}

TEST_CASE("diagnosis: the silent one is blamed, not those who left because of it") {
  const Beats earlier{beat_of(5, 7), beat_of(5, 7), beat_of(5, 7)};
  Beats later{beat_of(8, 7), beat_of(5, 7), beat_of(6, 7)};
  later[2]->ending = Beat::Ending::kLost;
  const std::string found = diagnosis_of(earlier, later, 0, "here");
  CHECK(found.find("Rank 1 (host node7, process 1234) is silent") == 0);
  CHECK(found.find("in step 7") != std::string::npos);
  CHECK(found.find("Rank 2") == std::string::npos);
}

TEST_CASE("diagnosis: a rank that failed is quoted, one that is behind is named with its step") {
  const Beats earlier{beat_of(5, 7), beat_of(5, 7), beat_of(5, 6)};
  Beats later{beat_of(8, 7), beat_of(8, 7), beat_of(8, 6)};
  CHECK(diagnosis_of(earlier, later, 0, "here") ==
        "All ranks live; Rank 2 (host node7, process 1234) is behind: it is in step 6, where "
        "others are "
        "at step 7.");
  later[2] = beat_of(8, 7);
  CHECK(diagnosis_of(earlier, later, 0, "here") == "All ranks live, and are in step 7.");
  // The store has lost what this rank has posted.
  later[0] = std::nullopt;
  CHECK(diagnosis_of(earlier, later, 0, "here") == "All ranks live, and are in step 7.");
  CHECK(diagnosis_of({std::nullopt}, {std::nullopt}, 0, "here") == "All ranks live.");
  later[1]->ending = Beat::Ending::kFailed;
  later[1]->reason = "out of memory";
  CHECK(diagnosis_of(earlier, later, 0, "here").find("has ended, in step 7: out of memory") !=
        std::string::npos);
  later[1] = std::nullopt;
  CHECK(diagnosis_of(earlier, later, 0, "here").find("Rank 1 has never given") == 0);
}

TEST_CASE("diagnosis: processes of this machine are looked at") {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  Beat beat = beat_of(1, 2, "here");
  beat.process = child;
  CHECK(state_of_process(beat, "here") == ProcessState::kRunning);
  CHECK(blame(1, beat, beat, "here").find("is silent") != std::string::npos);
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  CHECK(state_of_process(beat, "here") == ProcessState::kStopped);
  CHECK(state_of_process(beat, "there") == ProcessState::kUnknown);
  CHECK(blame(1, beat, beat, "here").find("is stopped") != std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  CHECK(state_of_process(beat, "here") == ProcessState::kGone);
  CHECK(blame(1, std::nullopt, beat, "here").find("has ended without a word") != std::string::npos);
}

TEST_CASE("diagnosis: one that cannot be looked at, for want of descriptors, lives") {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  Beat beat = beat_of(1, 2, "here");
  beat.process = child;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const ProcessState living = state_of_process(beat, "here");
  const std::string blamed = blame(1, std::nullopt, beat, "here");
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  const ProcessState gone = state_of_process(beat, "here");
  const std::string machine = own_machine();
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(living == ProcessState::kUnknown);
  CHECK(blamed.empty());
  CHECK(gone == ProcessState::kGone);
  // Two unknown machines do not count as one.
  CHECK(machine.empty());
  beat.machine = "";
  CHECK(state_of_process(beat, "") == ProcessState::kUnknown);
}

}  // namespace longspan
