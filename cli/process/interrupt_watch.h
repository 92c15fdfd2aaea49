// Handles Ctrl-C and similar signals without leaving half-written files. No torch.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>

#include "longspan/liveness/run_control.h"

namespace longspan {

/// Exit status after SIGINT.
inline constexpr int kInterruptedStatus = 130;

/// From construction to the end of the process, a thread of this object receives SIGINT, SIGTERM,
/// SIGUSR1 and SIGHUP, so that no signal kills the process at an arbitrary point. Before the
/// training loop, each signal ends the process at once. SIGTERM and SIGUSR1 give status 0, because
/// there is nothing to save and a launcher that restarts failed workers must not restart this
/// worker; without training, they give kInterruptedStatus, since the results are missing.
/// Before this end, the process tells the other processes (before_early_stop). A later
/// signal ends the process without this wait. SIGINT and SIGHUP give status 128 + number. In the
/// training loop:
/// - The first SIGINT (Ctrl-C) sets a flag for the loop. A second SIGINT ends the process at once
///   with status 130, and so does a loop that is still running kPatience after the first SIGINT.
/// - The first SIGTERM or SIGUSR1 (pre-emption) sets another flag: the loop finishes its step,
///   saves and ends with status 0, however long that takes. Repeats within kTogether count as the
///   same request: a cluster often signals launcher and workers, and the launcher forwards its
///   signals. A later signal ends the process at once.
/// - SIGHUP ends the process at once.
///
/// Once the run has ended (run_ended), no signal changes the status of the process. A signal that
/// arrives kTogether (5 s) or more after the run's end ends the process at once with the run's
/// status, because the exit hangs. Before each end at once, the process completes short writes and
/// removes temporary folders. A signal that the process was started to ignore (nohup) stays
/// ignored. Construct an InterruptWatch before other threads start, since threads inherit the
/// signal mask. The object is never destroyed, so it still works while static destructors run.
class InterruptWatch final : public RunControl {
 public:
  /// `speaks`: prints events to stderr (rank 0). `trains`: false for a run that only evaluates
  /// or answers rows, which saves nothing for a later run.
  explicit InterruptWatch(bool speaks, bool trains = true);
  ~InterruptWatch() = delete;

  /// Called when everything is printed and saved; the process ends with this status.
  void run_ended(int status);

  void begin_steps() override;
  void all_saved(RunEnd end) override;
  bool requested() const override { return requested_; }
  bool told_to_stop() const override { return stop_signal_ != 0 || launcher_is_gone_; }
  /// Returns the reason for the stop: the signal, or that another process was told to stop.
  std::string why_stopped() const override;
  /// Sets a callback that is called, on a separate thread, with the name of the signal that ends
  /// this process before the training loop. An empty function removes the callback.
  void before_early_stop(std::function<void(const std::string& signal)> tell) override;
  /// Called when another process was told to stop before the training loop: stops this process too.
  /// No-op once the loop has begun; the loop then notices that the other process is missing.
  void told_elsewhere(const std::string& why) override;
  /// Called when the launcher has ended. In the training loop, acts like a SIGTERM unless a signal
  /// has arrived. Returns true if the loop has begun; no-op before the loop.
  bool launcher_gone() override;
  /// Prints that a stop came before the first step, unless something was printed before, and ends
  /// the process.
  void stopped_early(const std::string& why) override;
  /// Prints how the run ended, if this process speaks and has not printed anything before.
  void say(const std::string& how) override;
  void before_loss_of_gpus(std::function<std::string(const std::string& reason)> tell) override;
  /// Prints the error and ends the process.
  void lost_others(const std::string& message) override;

  /// Time limit for an interrupted loop to end. The end of the whole run may take ten seconds.
  static constexpr std::chrono::seconds kPatience{5};
  /// Stop signals within this time count as one.
  static constexpr std::chrono::seconds kTogether{5};

 private:
  void watch();
  /// Before the training loop: tells the other processes and ends this process, on a separate
  /// thread.
  void tell_and_stop_early(int signal);
  /// Ends the process with the run's status if everything is printed and saved.
  void end_if_all_is_saved() const;
  [[noreturn]] void stop_early(const std::string& why);

  bool speaks_, trains_;
  std::atomic<bool> in_steps_{false}, requested_{false}, said_{false}, launcher_is_gone_{false};
  std::atomic<int> stop_signal_{0};
  std::atomic<std::chrono::steady_clock::time_point> ended_at_;  // set together with end_status_
  std::atomic<int> end_status_{-1};                              // -1: the run has not ended
  std::mutex begin_mutex_;
  bool stops_early_ = false;
  std::mutex tell_mutex_;
  std::function<void(const std::string&)> tell_;
};

/// For example "SIGTERM".
std::string name_of_signal(int signal);

}  // namespace longspan
