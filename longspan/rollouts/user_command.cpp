#include "longspan/rollouts/user_command.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/text/shown.h"

extern char** environ;

namespace longspan {
namespace {

constexpr size_t kMostOfErrors = 2048, kMostOutput = size_t{1} << 30;

[[noreturn]] void fail(const UserCommand& command, const std::string& problem) {
  throw UserError(fmt::format("{} {}: {}", command.key, shortened(command.command, 120), problem));
}

/// Returns this process's environment with the command's own variables.
std::vector<std::string> environment_of(const UserCommand& command) {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (command.environment.contains(std::string(text.substr(0, text.find('='))))) continue;
    variables.emplace_back(text);
  }
  for (const auto& [name, value] : command.environment) variables.push_back(name + "=" + value);
  return variables;
}

/// The ends of a pair of connected sockets, closed at the end. Sockets, unlike pipes, can be
/// written without SIGPIPE.
struct Sockets {
  std::array<int, 2> ends{-1, -1};
  explicit Sockets(const UserCommand& command) {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      fail(command, std::strerror(errno));
    }
  }
  ~Sockets() {
    for (int& end : ends) close(end);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  static void close(int& end) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
};

/// A child process with its own process group, which is killed if it still runs at the end.
class Child {
 public:
  Child(const UserCommand& command, int in, int out, int errors) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    std::string words[] = {"/bin/sh", "-c", command.command};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    std::vector<std::string> variables = environment_of(command);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    const int error =
        ::posix_spawn(&pid_, argv[0], &actions, &attributes, argv, environment.data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) fail(command, fmt::format("cannot be started: {}", std::strerror(error)));
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
};

/// Reads what is there. Returns false at the end.
bool read_some(int from, std::string& to) {
  std::array<char, 1 << 16> buffer;
  const ssize_t size = ::read(from, buffer.data(), buffer.size());
  if (size > 0) to.append(buffer.data(), static_cast<size_t>(size));
  return size > 0 || (size < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

std::optional<std::string> output_of(const UserCommand& command, const std::string& input,
                                     const std::function<bool()>& stops) {
  Sockets in(command), out(command), errors(command);
  Child child(command, in.ends[1], out.ends[1], errors.ends[1]);
  for (Sockets* sockets : {&in, &out, &errors}) Sockets::close(sockets->ends[1]);
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(command.seconds);
  std::string output, said;
  size_t num_written = 0;
  if (input.empty()) Sockets::close(in.ends[0]);
  while (out.ends[0] >= 0 || errors.ends[0] >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      fail(command, fmt::format("has not ended after {} s ({}); it was killed", command.seconds,
                                command.timeout_key));
    }
    if (stops && stops()) return std::nullopt;
    pollfd waiting[] = {
        {in.ends[0], POLLOUT, 0}, {out.ends[0], POLLIN, 0}, {errors.ends[0], POLLIN, 0}};
    ::poll(waiting, 3, static_cast<int>(std::min<int64_t>(left.count(), 200)));
    if (waiting[0].revents != 0) {
      const ssize_t size = ::send(in.ends[0], input.data() + num_written,
                                  input.size() - num_written, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (size > 0) num_written += static_cast<size_t>(size);
      // A command may ignore its input; its status tells whether it failed.
      const bool failed = size < 0 && errno != EAGAIN && errno != EINTR;
      if (failed || num_written == input.size()) Sockets::close(in.ends[0]);
    }
    if (waiting[1].revents != 0 && !read_some(out.ends[0], output)) Sockets::close(out.ends[0]);
    if (waiting[2].revents != 0 && !read_some(errors.ends[0], said)) Sockets::close(errors.ends[0]);
    if (said.size() > kMostOfErrors) said.erase(0, said.size() - kMostOfErrors);
    if (output.size() > kMostOutput) fail(command, "wrote more than 1 GiB");
  }
  const int status = child.wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  fail(command,
       fmt::format("{}{}{}",
                   WIFEXITED(status) ? fmt::format("returned status {}", WEXITSTATUS(status))
                                     : fmt::format("was ended by signal {}", WTERMSIG(status)),
                   said.empty() ? "" : ":\n", said));
}

}  // namespace longspan
