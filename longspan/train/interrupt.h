// Ctrl-C and its relatives, without half-written files. No torch.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>

namespace longspan {

/// From its making to the last instruction of the process, SIGINT, SIGTERM, SIGUSR1 and SIGHUP
/// arrive in a thread of its own instead of killing the process wherever it stands. Before the
/// training loop runs each ends the process at once: SIGTERM and SIGUSR1 with status 0, as there is
/// nothing to save and a launcher that restarts what has failed is not to, the others with 128 +
/// number. Later:
/// - The first SIGINT (Ctrl-C) sets a flag for the loop to see; the second, or a loop that has not
///   ended in kPatience, ends the process at once with status 130.
/// - The first SIGTERM or SIGUSR1 (pre-emption) sets another: the loop finishes its step, saves and
///   ends with status 0, however long that takes. Those that follow within kTogether tell the same
///   (a cluster signals launcher and workers, the launcher hands on, or dies of it); a later one
///   ends the process at once.
/// - SIGHUP ends it at once.
/// Once the run has ended (run_ended), the process is on its way out with the run's status: none of
/// them changes that. One that comes 5 s or more after the end (kTogether) ends the process at
/// once, with that status: something in the way out hangs. An end at once waits for short writes
/// that are under way and removes temporary folders. A signal that the process was started to
/// ignore (nohup) stays ignored. Make it before other threads start: they inherit the mask. It is
/// never destroyed: static destructors still run while it watches.
class InterruptWatch {
 public:
  /// `speaks`: says on stderr what happens (rank 0).
  explicit InterruptWatch(bool speaks);
  ~InterruptWatch() = delete;
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  /// From now on somebody looks at requested() after every step.
  void begin_steps() { in_steps_ = true; }
  /// All is said and saved; the process ends with this status.
  void run_ended(int status);
  /// Leave the step and end.
  bool requested() const { return requested_; }
  /// Finish the step, save and end: the signal that asks for it, or 0.
  int stop_signal() const {
    const int signal = stop_signal_;
    return signal == 0 && launcher_is_gone_ ? SIGTERM : signal;
  }
  /// Once the run has stopped: by which signal, or that it came to another process.
  std::string why_stopped() const;
  /// `tell` is called, on a thread of its own, with the signal that ends this process before the
  /// training loop. An empty one ends that.
  void before_early_stop(std::function<void(const std::string& signal)> tell);
  /// Another process was told to stop before the training loop: so is this one. Nothing happens
  /// where the loop has begun; it will miss the other one.
  void told_elsewhere(const std::string& why);
  /// The launcher has ended: as SIGTERM in the training loop, if none came. Returns whether the
  /// loop has begun; before it nothing happens.
  bool launcher_gone();
  /// Prints that a stop came before the first step, if nothing was said yet.
  void say_stopped_early(const std::string& why);
  /// Prints how the run ended, if this process speaks and nothing was said yet.
  void say(const std::string& how);

  /// Of the ten seconds in which an interrupted run has to be gone.
  static constexpr std::chrono::seconds kPatience{5};
  /// In which several signals to stop are one.
  static constexpr std::chrono::seconds kTogether{5};

 private:
  void watch();
  [[noreturn]] void stop_early(const std::string& why);

  bool speaks_;
  std::atomic<bool> in_steps_{false}, requested_{false}, said_{false}, launcher_is_gone_{false};
  std::atomic<int> stop_signal_{0};
  std::atomic<std::chrono::steady_clock::time_point> ended_at_;  // where end_status_ is set
  std::atomic<int> end_status_{-1};                              // -1: the run goes on
  std::mutex tell_mutex_;
  std::function<void(const std::string&)> tell_;
};

/// Ends the process with this status, without running destructors, which may wait for other
/// processes; short writes are finished, temporary folders removed and actions run (EndAtOnce).
/// Each is waited for some seconds at most: a disk that hangs keeps no process.
[[noreturn]] void end_process_at_once(int status);

/// "SIGTERM".
std::string name_of_signal(int signal);

/// A folder that is removed when the object dies, or when the process is told to end at once.
class TemporaryFolder {
 public:
  /// Creates `path`, empty; what an earlier run has left there goes. Throws UserError, as
  /// remove_own_folder does where something else is there.
  explicit TemporaryFolder(std::string path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// While one lives, `action` runs when the process is told to end at once: short, and it throws
/// nothing.
class EndAtOnce {
 public:
  explicit EndAtOnce(std::function<void()> action);
  ~EndAtOnce();
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;
  /// Changes what the action looks at, while it does not run.
  void change(const std::function<void()>& what) const;
  void run() const { action_(); }

 private:
  std::function<void()> action_;
};

/// Holds off an end at once while short writes or renames belong together.
class UninterruptedScope {
 public:
  UninterruptedScope();
  ~UninterruptedScope();
  UninterruptedScope(const UninterruptedScope&) = delete;
  UninterruptedScope& operator=(const UninterruptedScope&) = delete;
};

}  // namespace longspan
