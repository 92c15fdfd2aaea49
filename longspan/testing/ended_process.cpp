#include "longspan/testing/ended_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

namespace longspan {

EndedProcess ended_process(const std::function<void()>& run) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category());
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category());
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);
    run();
    _exit(0);
  }
  close(ends[1]);
  EndedProcess ended;
  char some[512];
  for (ssize_t length; (length = read(ends[0], some, sizeof(some))) > 0;) {
    ended.text.append(some, static_cast<size_t>(length));
  }
  close(ends[0]);
  waitpid(child, &ended.status, 0);
  return ended;
}

}  // namespace longspan
