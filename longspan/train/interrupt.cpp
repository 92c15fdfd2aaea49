#include "longspan/train/interrupt.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>

#include "longspan/config/user_error.h"

namespace longspan {
namespace {

std::timed_mutex short_writes;
std::mutex temporary_folders_mutex;

std::set<std::string>& temporary_folders() {
  static std::set<std::string> folders;
  return folders;
}

sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

[[noreturn]] void end_at_once(int signal) {
  // A second is plenty for a log line or some renames; a hung file system must not keep us.
  const bool locked = short_writes.try_lock_for(std::chrono::seconds(1));
  static_cast<void>(locked);
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code ignored;
  // Twice: another thread may be writing into the folder until the process is gone.
  for (int i = 0; i < 2; ++i) {
    for (const std::string& folder : temporary_folders()) {
      std::filesystem::remove_all(folder, ignored);
    }
  }
  _exit(128 + signal);
}

}  // namespace

InterruptWatch::InterruptWatch(bool speaks) : speaks_(speaks) {
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { watch(); });
}

InterruptWatch::~InterruptWatch() {
  stop_ = true;
  pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void InterruptWatch::watch() {
  const sigset_t signals = watched_signals();
  for (;;) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    if (stop_) return;
    if (signal == SIGINT && in_steps_ && !requested_) {
      requested_ = true;
      continue;
    }
    if (speaks_ && signal == SIGINT) fmt::print(stderr, "\nInterrupted; nothing was saved.\n");
    end_at_once(signal);
  }
}

TemporaryFolder::TemporaryFolder(std::string path) : path_(std::move(path)) {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (!error) std::filesystem::create_directories(path_, error);
  if (error) {
    throw UserError(
        fmt::format("{}: the folder cannot be made ({}). Make room, or choose another "
                    "output_dir.",
                    path_, error.message()));
  }
  temporary_folders().insert(path_);
}

TemporaryFolder::~TemporaryFolder() {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  temporary_folders().erase(path_);
}

UninterruptedScope::UninterruptedScope() { short_writes.lock(); }
UninterruptedScope::~UninterruptedScope() { short_writes.unlock(); }

}  // namespace longspan
