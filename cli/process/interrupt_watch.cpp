#include "cli/process/interrupt_watch.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <thread>

#include "cli/process/end_process.h"
#include "cli/process/lost_gpus.h"
#include "longspan/text/print.h"

namespace longspan {
namespace {

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

}  // namespace

std::string name_of_signal(int signal) {
  return signal == SIGTERM   ? "SIGTERM"
         : signal == SIGUSR1 ? "SIGUSR1"
                             : fmt::format("signal {}", signal);
}

InterruptWatch::InterruptWatch(bool speaks, bool trains) : speaks_(speaks), trains_(trains) {
  const sigset_t signals = watched_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write to a dead rank must give an error, not end this process.
  std::signal(SIGPIPE, SIG_IGN);
  std::thread([this] { watch(); }).detach();
}

void InterruptWatch::run_ended(int status) {
  ended_at_ = std::chrono::steady_clock::now();
  end_status_ = status;
}

void InterruptWatch::all_saved(RunEnd end) {
  run_ended(end == RunEnd::kInterrupted ? kInterruptedStatus : 0);
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
    if (waited) signal = SIGINT;  // the loop takes too long
    if (signal == SIGINT && in_steps_ && !requested_) {
      requested_ = true;
      continue;
    }
    if (signal == SIGTERM || signal == SIGUSR1) {
      const auto now = std::chrono::steady_clock::now();
      if (stop_signal_ == 0) {
        stop_signal_ = signal;
        told = now;
        tell_and_stop_early(signal);
        continue;
      }
      if (now - told < kTogether) continue;
    }
    if (signal == SIGINT) say("Interrupted; nothing more was saved.");
    end_process_at_once(128 + signal);
  }
}

void InterruptWatch::begin_steps() {
  {
    const std::lock_guard lock(begin_mutex_);
    in_steps_ = !stops_early_;
  }
  while (!in_steps_) pause();  // the thread that tells the others ends the process
}

void InterruptWatch::tell_and_stop_early(int signal) {
  {
    const std::lock_guard lock(begin_mutex_);
    if (in_steps_) return;
    stops_early_ = true;
  }
  const auto work = [this, name = name_of_signal(signal)] {
    {
      const std::lock_guard lock(tell_mutex_);
      if (tell_) tell_(name);
    }
    stop_early(name);
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {  // no thread can be started
    work();
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

void InterruptWatch::stopped_early(const std::string& why) {
  std::fflush(stdout);
  stop_early(why);
}

void InterruptWatch::stop_early(const std::string& why) {
  say(fmt::format("Stopped before the first {} ({}): nothing was {}, nothing is lost.",
                  trains_ ? "step" : "row", why, trains_ ? "trained" : "written"));
  end_process_at_once(trains_ ? 0 : kInterruptedStatus);
}

void InterruptWatch::before_loss_of_gpus(
    std::function<std::string(const std::string& reason)> tell) {
  if (!tell) return tell_of_lost_gpus({});
  tell_of_lost_gpus([this, tell = std::move(tell)](const std::string& reason) {
    end_if_all_is_saved();
    if (requested_) {
      say("Interrupted; nothing more was saved.");
      end_process_at_once(kInterruptedStatus);
    }
    return tell(reason);
  });
}

void InterruptWatch::lost_others(const std::string& message) {
  end_if_all_is_saved();
  claim_last_words();
  print_err("error: {}\n", message);
  end_process_at_once(1);
}

void InterruptWatch::end_if_all_is_saved() const {
  // Ranks do not end at the same moment.
  const int status = end_status_;
  if (status == 0 || status == kInterruptedStatus) end_process_at_once(status);
}

void InterruptWatch::say(const std::string& how) {
  if (speaks_ && !said_.exchange(true)) print_err("\n{}\n", how);
}

}  // namespace longspan
