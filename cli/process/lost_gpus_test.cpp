#include "cli/process/lost_gpus.h"

#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "longspan/testing/ended_process.h"

namespace longspan {
namespace {

/// Returns the end of a process in which `run` leaves each of `num_threads` threads by an
/// exception.
EndedProcess end_of_threads(int num_threads, const std::function<void()>& run,
                            const std::function<std::string(const std::string& reason)>& tell) {
  return ended_process([&] {
    end_with_lost_gpus();
    tell_of_lost_gpus(tell);
    for (int i = 0; i < num_threads; ++i) std::thread(run).detach();
    for (;;) pause();
  });
}

/// Throws like torch's watchdog.
[[noreturn]] void lose_gpus() {
  throw c10::DistBackendError(
      {},
      "[PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: "
      "NCCL error: remote process exited, NCCL version 2.28.9\nncclRemoteError: A call failed.\n"
      "Last error:\nthe link is down\nException raised from run at ProcessGroupNCCL.cpp:1 "
      "(most recent call first):\nframe #0: c10::Error");
}

}  // namespace

TEST_CASE("lost GPUs: an error of NCCL in threads of torch's ends the process with one message") {
  const std::string reason =
      "NCCL error: remote process exited, NCCL version 2.28.9; ncclRemoteError: A call failed; "
      "Last error: the link is down";
  for (const int num_threads : {1, 4}) {
    const EndedProcess end = end_of_threads(num_threads, lose_gpus, {});
    CHECK(WIFEXITED(end.status));
    CHECK(WEXITSTATUS(end.status) == 1);
    CHECK(end.text.starts_with("error: communication between GPUs failed: " + reason + ". "));
    CHECK(end.text.find('\n') == end.text.size() - 1);
  }
  const EndedProcess told =
      end_of_threads(2, lose_gpus, [](const std::string& why) { return "rank 7: " + why; });
  CHECK(WIFEXITED(told.status));
  CHECK(told.text == "error: rank 7: " + reason + "\n");
  const EndedProcess worse = end_of_threads(
      1, lose_gpus, [](const std::string&) -> std::string { throw std::runtime_error("x"); });
  CHECK(WIFEXITED(worse.status));
  CHECK(worse.text.find(reason) != std::string::npos);
  const EndedProcess own = end_of_threads(
      1,
      [] {
        throw c10::DistBackendError(
            {},
            "[Rank 1] Process group watchdog thread terminated with exception: CUDA error: an "
            "illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress'");
      },
      {});
  CHECK(WIFEXITED(own.status));
  CHECK(WEXITSTATUS(own.status) == 2);
  CHECK(
      own.text.starts_with("internal error: the GPU of this rank has failed: CUDA error: an "
                           "illegal memory access was encountered; "));
  CHECK(own.text.find("another rank") == std::string::npos);
  const EndedProcess late = end_of_threads(
      1,
      [] {
        throw c10::DistBackendError(
            {},
            "[PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: "
            "[PG GUID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=18, "
            "OpType=ALLREDUCE) ran for 64030 milliseconds before timing out.");
      },
      {});
  CHECK(
      late.text.starts_with("error: communication between GPUs failed: Watchdog caught collective "
                            "operation timeout: WorkNCCL(SeqNum=18, OpType=ALLREDUCE) ran for "
                            "64030 milliseconds before timing out. "));
  const EndedProcess defect = end_of_threads(1, [] { throw 7; }, {});
  CHECK(WIFSIGNALED(defect.status));
  CHECK(WTERMSIG(defect.status) == SIGABRT);
}

}  // namespace longspan
