// Ctrl-C and its relatives, without half-written files. No torch.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>

namespace longspan {

/// From construction to the last instruction of the process, a thread of this object receives
/// SIGINT, SIGTERM, SIGUSR1 and SIGHUP, so that none kills the process wherever it stands. Before
/// the training loop runs, each ends the process at once. SIGTERM and SIGUSR1 end it with status 0:
/// there is nothing to save, and a launcher that restarts failed workers must not restart it. The
/// others end it with 128 + number. In the training loop:
/// - The first SIGINT (Ctrl-C) sets a flag for the loop to see; the second, or a loop that has not
///   ended in kPatience, ends the process at once with status 130.
/// - The first SIGTERM or SIGUSR1 (pre-emption) sets another: the loop finishes its step, saves and
///   ends with status 0, however long that takes. Repeats within kTogether count as the same
///   request: a cluster often signals launcher and workers, and the launcher forwards what it gets.
///   A later signal ends the process at once.
/// - SIGHUP ends it at once.
/// Once the run has ended (run_ended), no signal changes its status. A signal 5 s or more after
/// that (kTogether) ends the process at once with that status, since something in its exit hangs.
/// Ending at once waits for short writes that are under way and removes temporary folders. A signal
/// that the process was started to ignore (nohup) stays ignored. Construct it before other threads
/// start, since they inherit the signal mask. It is never destroyed: it still watches while static
/// destructors run.
class InterruptWatch {
 public:
  /// `speaks`: says on stderr what happens (rank 0).
  explicit InterruptWatch(bool speaks);
  ~InterruptWatch() = delete;
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  /// The training loop begins: from now on it asks requested() after every step.
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
  /// After the run has stopped: which signal stopped it, or that another process got the signal.
  std::string why_stopped() const;
  /// Sets what is called, on a thread of its own, with the name of the signal that ends this
  /// process before the training loop. An empty function unsets it.
  void before_early_stop(std::function<void(const std::string& signal)> tell);
  /// Another process was told to stop before the training loop: stops this process too. Does
  /// nothing once the loop has begun; the loop then notices that the other process is missing.
  void told_elsewhere(const std::string& why);
  /// The launcher has ended: acts as a SIGTERM in the training loop, if no signal has come. Returns
  /// whether the loop has begun; does nothing before that.
  bool launcher_gone();
  /// Prints that a stop came before the first step, if nothing was said yet.
  void say_stopped_early(const std::string& why);
  /// Prints how the run ended, if this process speaks and nothing was said yet.
  void say(const std::string& how);

  /// The time that an interrupted loop has to end, out of ten seconds for the whole run.
  static constexpr std::chrono::seconds kPatience{5};
  /// Signals to stop within this time count as one.
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
/// processes. It first finishes short writes, removes temporary folders and runs actions
/// (EndAtOnce). It waits some seconds at most for each, so that a disk that hangs keeps no process
/// alive.
[[noreturn]] void end_process_at_once(int status);

/// "SIGTERM".
std::string name_of_signal(int signal);

/// A folder that is removed when the object dies, or when the process is told to end at once.
class TemporaryFolder {
 public:
  /// Creates `path` as an empty folder and removes what an earlier run has left there. Throws
  /// UserError, as remove_own_folder does where something else is there.
  explicit TemporaryFolder(std::string path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// While this object lives, `action` runs when the process ends at once. It must be short and throw
/// nothing.
class EndAtOnce {
 public:
  explicit EndAtOnce(std::function<void()> action);
  ~EndAtOnce();
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;
  /// Calls `what`, which may change what the action reads; the action does not run meanwhile.
  void change(const std::function<void()>& what) const;
  void run() const { action_(); }

 private:
  std::function<void()> action_;
};

/// While this object lives, the process does not end at once: for short writes or renames that
/// belong together.
class UninterruptedScope {
 public:
  UninterruptedScope();
  ~UninterruptedScope();
  UninterruptedScope(const UninterruptedScope&) = delete;
  UninterruptedScope& operator=(const UninterruptedScope&) = delete;
};

}  // namespace longspan
