#include "longspan/liveness/interrupt.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/written_names.h"
#include "longspan/config/user_error.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

std::timed_mutex short_writes;
std::mutex temporary_folders_mutex;

/// Never destroyed: the process may be told to end at once while static destructors run.
std::set<std::string>& temporary_folders() {
  static auto& folders = *new std::set<std::string>;
  return folders;
}

std::set<const EndAtOnce*>& actions_at_end() {
  static auto& actions = *new std::set<const EndAtOnce*>;
  return actions;
}

sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction inherited{};
    sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  return signals;
}

/// What the process tidies up before it ends at once. Never destroyed.
struct Tidying {
  std::promise<void> folders, actions;
};

void tidy_up(Tidying& tidying) {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code ignored;
  // Twice: another thread may be writing into the folder until the process is gone.
  for (int i = 0; i < 2; ++i) {
    for (const std::string& folder : temporary_folders()) {
      std::filesystem::remove_all(folder, ignored);
    }
  }
  tidying.folders.set_value();
  for (const EndAtOnce* action : actions_at_end()) action->run();
  tidying.actions.set_value();
  // Nobody makes another folder.
  for (;;) pause();
}

}  // namespace

void end_process_at_once(int status) {
  // A second is plenty for a log line or some renames, and for the actions; gigabytes go in three.
  // A hung file system must not keep us.
  using std::chrono::seconds;
  const bool locked = short_writes.try_lock_for(seconds(1));
  static_cast<void>(locked);
  auto& tidying = *new Tidying;
  try {
    std::thread([&tidying] { tidy_up(tidying); }).detach();
    tidying.folders.get_future().wait_for(seconds(3));
    tidying.actions.get_future().wait_for(seconds(1));
  } catch (const std::system_error&) {
    // No thread can be started. A later run removes what is left here.
  }
  _exit(status);
}

std::string name_of_signal(int signal) {
  return signal == SIGTERM   ? "SIGTERM"
         : signal == SIGUSR1 ? "SIGUSR1"
                             : fmt::format("signal {}", signal);
}

InterruptWatch::InterruptWatch(bool speaks) : speaks_(speaks) {
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Writing to a rank that is gone is an error to be told, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  std::thread([this] { watch(); }).detach();
}

void InterruptWatch::run_ended(int status) {
  ended_at_ = std::chrono::steady_clock::now();
  end_status_ = status;
}

void InterruptWatch::watch() {
  const sigset_t signals = watched_signals();
  const timespec patience{.tv_sec = kPatience.count(), .tv_nsec = 0};
  std::chrono::steady_clock::time_point told;
  for (;;) {
    int signal = sigtimedwait(&signals, nullptr, requested_ ? &patience : nullptr);
    const bool waited = signal < 0 && errno == EAGAIN;
    if (signal < 0 && !waited) continue;
    if (const int status = end_status_; status >= 0) {
      if (std::chrono::steady_clock::now() - ended_at_.load() < kTogether) continue;
      end_process_at_once(status);
    }
    if (waited) signal = SIGINT;  // a step that takes longer
    if (signal == SIGINT && in_steps_ && !requested_) {
      requested_ = true;
      continue;
    }
    if ((signal == SIGTERM || signal == SIGUSR1) && !in_steps_) {
      {
        const std::lock_guard lock(tell_mutex_);
        if (tell_) tell_(name_of_signal(signal));
      }
      stop_early(name_of_signal(signal));
    }
    if (signal == SIGTERM || signal == SIGUSR1) {
      const auto now = std::chrono::steady_clock::now();
      if (stop_signal_ == 0) {
        stop_signal_ = signal;
        told = now;
        continue;
      }
      if (now - told < kTogether) continue;
    }
    if (signal == SIGINT) say("Interrupted; nothing more was saved.");
    end_process_at_once(128 + signal);
  }
}

std::string InterruptWatch::why_stopped() const {
  const int signal = stop_signal_;
  if (signal != 0) return name_of_signal(signal);
  return launcher_is_gone_ ? "the launcher has ended" : "another process was told to stop";
}

void InterruptWatch::before_early_stop(std::function<void(const std::string&)> tell) {
  const std::lock_guard lock(tell_mutex_);
  tell_ = std::move(tell);
}

void InterruptWatch::told_elsewhere(const std::string& why) {
  if (!in_steps_) stop_early(why);
}

bool InterruptWatch::launcher_gone() {
  if (!in_steps_) return false;
  launcher_is_gone_ = true;
  return true;
}

void InterruptWatch::say_stopped_early(const std::string& why) {
  say(fmt::format("Stopped before the first step ({}): nothing was trained, nothing is lost.",
                  why));
}

void InterruptWatch::stop_early(const std::string& why) {
  say_stopped_early(why);
  end_process_at_once(0);
}

void InterruptWatch::say(const std::string& how) {
  if (speaks_ && !said_.exchange(true)) print_err("\n{}\n", how);
}

TemporaryFolder::TemporaryFolder(std::string path) : path_(std::move(path)) {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code error;
  remove_own_folder(path_);
  std::filesystem::create_directories(path_, error);
  if (error) {
    throw_disk_error(error.value(), fmt::format("{}: the folder cannot be made ({}). {}", path_,
                                                error.message(), remedy_for(error.value())));
  }
  temporary_folders().insert(path_);
}

TemporaryFolder::~TemporaryFolder() {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  temporary_folders().erase(path_);
}

EndAtOnce::EndAtOnce(std::function<void()> action) : action_(std::move(action)) {
  const std::lock_guard lock(temporary_folders_mutex);
  actions_at_end().insert(this);
}

EndAtOnce::~EndAtOnce() {
  const std::lock_guard lock(temporary_folders_mutex);
  actions_at_end().erase(this);
}

void EndAtOnce::change(const std::function<void()>& what) const {
  const std::lock_guard lock(temporary_folders_mutex);
  what();
}

UninterruptedScope::UninterruptedScope() { short_writes.lock(); }
UninterruptedScope::~UninterruptedScope() { short_writes.unlock(); }

}  // namespace longspan
