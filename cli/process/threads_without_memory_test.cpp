#include "cli/process/threads_without_memory.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <new>
#include <system_error>
#include <thread>

#include "longspan/memory/out_of_memory.h"
#include "longspan/testing/ended_process.h"

namespace longspan {
namespace {

/// Returns the end of a process in which `run` leaves a thread by an exception.
EndedProcess end_of_thread(const std::function<void()>& run) {
  return ended_process([&] {
    end_threads_without_memory();
    std::thread(run).join();
  });
}

}  // namespace

TEST_CASE("out of memory: a thread that finds none ends the process with a message") {
  for (const std::function<void()>& run :
       {std::function<void()>([] { throw std::bad_alloc(); }),
        std::function<void()>([] { throw std::system_error(EAGAIN, std::generic_category()); })}) {
    const EndedProcess end = end_of_thread(run);
    CHECK(WIFEXITED(end.status));
    CHECK(WEXITSTATUS(end.status) == 1);
    CHECK(end.text.starts_with("error: out of memory: "));
  }
  CHECK(is_out_of_memory(std::system_error(EAGAIN, std::generic_category())));
  CHECK_FALSE(is_out_of_memory(std::system_error(EINVAL, std::generic_category())));
  const EndedProcess defect = end_of_thread([] { throw 7; });
  CHECK(WIFSIGNALED(defect.status));
  CHECK(WTERMSIG(defect.status) == SIGABRT);
}

}  // namespace longspan
