#include "longspan/rollouts/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/text/shown.h"

extern char** environ;

namespace longspan {
namespace {

constexpr size_t kMostOfErrors = 2048;

/// Blocks SIGPIPE in this thread: a write to a command that has closed its input returns EPIPE. A
/// library leaves the process's own handling of signals alone.
class BlockedSigpipe {
 public:
  BlockedSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~BlockedSigpipe() {
    const timespec at_once{};
    while (!was_pending_ && sigtimedwait(&sigpipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  BlockedSigpipe& operator=(const BlockedSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
  bool was_pending_;
};

/// Variables by which launchers tell a process its rank. A command with torch, MPI or Longspan in
/// it would take itself for this rank, and wait for the others.
constexpr std::string_view kOfRanks[] = {
    "RANK",         "WORLD_SIZE",       "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
    "GROUP_RANK",   "GROUP_WORLD_SIZE", "ROLE_RANK",       "ROLE_WORLD_SIZE",
    "ROLE_NAME",    "MASTER_ADDR",      "MASTER_PORT",     "LONGSPAN_DDP_TIMEOUT",
    "PMI_RANK",     "PMI_SIZE",         "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "SLURM_PROCID", "SLURM_LOCALID"};
constexpr std::string_view kBeginningsOfRanks[] = {"TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMIX_",
                                                   "SLURM_STEP_"};
/// Variables that torchrun, or `longspan train` for it, gives each rank.
constexpr std::string_view kByTorchrun[] = {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"};

/// Returns this process's environment without the variables of its launcher, with further
/// variables.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string_view> own;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    own.emplace_back(*variable);
  }
  const bool by_torchrun = std::ranges::any_of(
      own, [](std::string_view text) { return text.starts_with("TORCHELASTIC_RUN_ID="); });
  std::vector<std::string> all;
  for (const std::string_view text : own) {
    const std::string_view name = text.substr(0, text.find('='));
    const auto is_name = [&](std::string_view other) { return other == name; };
    const auto begins = [&](std::string_view other) { return name.starts_with(other); };
    if (std::ranges::any_of(kOfRanks, is_name) || std::ranges::any_of(kBeginningsOfRanks, begins) ||
        (by_torchrun && std::ranges::any_of(kByTorchrun, is_name)) ||
        variables.contains(std::string(name))) {
      continue;
    }
    all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

/// Reads the available text. Returns false at the end.
bool read_some(int from, std::string& to) {
  std::array<char, 1 << 16> buffer;
  const ssize_t size = ::read(from, buffer.data(), buffer.size());
  if (size > 0) to.append(buffer.data(), static_cast<size_t>(size));
  return size > 0 || (size < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

ChildProcess::ChildProcess(const std::string& command,
                           const std::map<std::string, std::string>& variables) {
  std::array<int, 3> theirs{-1, -1, -1};
  const auto fail = [&](int error) {
    for (int& end : theirs) close(end);
    for (int& end : ends_) close(end);
    throw UserError(
        fmt::format("{} cannot be started: {}", shortened(command, 120), std::strerror(error)));
  };
  // Pipes, unlike sockets, can be opened as /dev/stdin.
  for (size_t i = 0; i < theirs.size(); ++i) {
    std::array<int, 2> pair{};
    if (::pipe2(pair.data(), O_CLOEXEC) != 0) fail(errno);
    ends_[i] = pair[i == 0 ? 1 : 0];
    theirs[i] = pair[i == 0 ? 0 : 1];
  }
  if (::fcntl(ends_[0], F_SETFL, O_NONBLOCK) != 0) fail(errno);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  for (int stream = 0; stream < 3; ++stream) {
    posix_spawn_file_actions_adddup2(&actions, theirs[stream], stream);
  }
#if __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string words[] = {"/bin/sh", "-c", command};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  std::vector<std::string> environment = environment_with(variables);
  std::vector<char*> pointers;
  for (std::string& variable : environment) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  const int error = ::posix_spawn(&pid_, argv[0], &actions, &attributes, argv, pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = -1;
    fail(error);
  }
  for (int& end : theirs) close(end);
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    wait();
  }
  for (int& end : ends_) close(end);
}

void ChildProcess::close(int& end) {
  if (end >= 0) ::close(std::exchange(end, -1));
}

int ChildProcess::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

void ChildProcess::exchange(std::chrono::milliseconds most) {
  if (pending_.empty() && input_ends_) close(ends_[0]);
  // A negative descriptor is ignored by poll().
  pollfd waiting[] = {
      {pending_.empty() ? -1 : ends_[0], POLLOUT, 0}, {ends_[1], POLLIN, 0}, {ends_[2], POLLIN, 0}};
  ::poll(waiting, 3, static_cast<int>(most.count()));
  if (waiting[0].revents != 0) {
    const BlockedSigpipe blocked;
    const ssize_t size = ::write(ends_[0], pending_.data(), pending_.size());
    const int error = size < 0 ? errno : 0;
    if (size > 0) pending_.erase(0, static_cast<size_t>(size));
    // A command may ignore its input; its status tells whether it failed.
    if (error != 0 && error != EAGAIN && error != EINTR) {
      pending_.clear();
      close(ends_[0]);
    }
  }
  if (waiting[1].revents != 0 && !read_some(ends_[1], output_)) close(ends_[1]);
  if (waiting[2].revents != 0 && !read_some(ends_[2], errors_)) close(ends_[2]);
  if (errors_.size() > kMostOfErrors) errors_.erase(0, errors_.size() - kMostOfErrors);
}

bool ChildProcess::has_exited() const {
  siginfo_t info{};
  const auto id = static_cast<id_t>(pid_);
  return ::waitid(P_PID, id, &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid != 0;
}

std::string ChildProcess::status() {
  // A command may close its streams and go on.
  for (int i = 0; i < 20 && !has_exited(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (!has_exited()) ::kill(-pid_, SIGKILL);
  const int status = wait();
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("returned status {}", WEXITSTATUS(status));
}

}  // namespace longspan
