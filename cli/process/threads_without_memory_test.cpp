#include "cli/process/threads_without_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "longspan/memory/out_of_memory.h"

namespace longspan {
namespace {

struct End {
  int status;
  std::string text;  // on stderr
};

/// Of a process in which `run` leaves a thread by an exception.
End end_of_thread(const std::function<void()>& run) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);
    end_threads_without_memory();
    std::thread(run).join();
    _exit(0);
  }
  close(ends[1]);
  End end{};
  char text[512];
  for (ssize_t length; (length = read(ends[0], text, sizeof(text))) > 0;) {
    end.text.append(text, static_cast<size_t>(length));
  }
  close(ends[0]);
  waitpid(child, &end.status, 0);
  return end;
}

}  // namespace

TEST_CASE("out of memory: a thread that finds none ends the process with a message") {
  for (const std::function<void()>& run :
       {std::function<void()>([] { throw std::bad_alloc(); }),
        std::function<void()>([] { throw std::system_error(EAGAIN, std::generic_category()); })}) {
    const End end = end_of_thread(run);
    CHECK(WIFEXITED(end.status));
    CHECK(WEXITSTATUS(end.status) == 1);
    CHECK(end.text.starts_with("error: out of memory: "));
  }
  CHECK(is_out_of_memory(std::system_error(EAGAIN, std::generic_category())));
  CHECK_FALSE(is_out_of_memory(std::system_error(EINVAL, std::generic_category())));
  const End defect = end_of_thread([] { throw 7; });
  CHECK(WIFSIGNALED(defect.status));
  CHECK(WTERMSIG(defect.status) == SIGABRT);
}

}  // namespace longspan
