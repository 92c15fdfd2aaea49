// Interface to the program around a run. The program may stop the run, and handles signals and the
// end of the process, which a library must not do. No torch.
#pragma once

#include <functional>
#include <string>

namespace longspan {

/// How a run ended.
enum class RunEnd {
  kDone,
  kInterrupted,  // at once; the current step was abandoned
  kStopped,      // after a step, with everything saved
};

/// A run asks its control whether to go on, and reports its progress to the control. The defaults
/// never stop a run and never end the process; PlainRunControl uses them. `longspan train` has a
/// control that reacts to signals.
class RunControl {
 public:
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  /// True to abandon the current step and end.
  virtual bool requested() const { return false; }
  /// True to finish the current step, save and end.
  virtual bool told_to_stop() const { return false; }
  /// Returns the cause of the stop, as a clause. Called after the run has stopped.
  virtual std::string why_stopped() const { return "another process was told to stop"; }

  /// Called when the training loop begins. From then on the loop checks requested() after every
  /// step.
  virtual void begin_steps() {}
  /// Called when the run has nothing more to save.
  virtual void all_saved(RunEnd end) { static_cast<void>(end); }
  /// Sets a callback for a signal that arrives before the training loop. The program calls the
  /// callback on any thread, with the name of the signal, before the program ends the process. An
  /// empty function removes the callback.
  virtual void before_early_stop(std::function<void(const std::string& signal)> tell) {
    static_cast<void>(tell);
  }

  /// Sets a callback for the loss of this process's GPU's peers, which a thread of a library
  /// detects. The program calls the callback on any thread, with the library's reason, then ends
  /// the process with the returned message. An empty function removes the callback.
  virtual void before_loss_of_gpus(std::function<std::string(const std::string& reason)> tell) {
    static_cast<void>(tell);
  }

  /// Another process was told to stop before its training loop. Called repeatedly, on another
  /// thread.
  virtual void told_elsewhere(const std::string& why) { static_cast<void>(why); }
  /// The launcher has ended. Called repeatedly, on another thread. Returns true if the run saves
  /// and ends by itself.
  virtual bool launcher_gone() { return false; }

  /// Tells the user how the run ended.
  virtual void say(const std::string& how) { static_cast<void>(how); }
  /// The run has ended before its first step, since another process was told to stop. A program
  /// tells the user, and may end the process.
  virtual void stopped_early(const std::string& why) { static_cast<void>(why); }
  /// Called on another thread when ranks are gone and the run's own thread still waits for them. A
  /// program prints the message and ends the process. If this function returns, the run's thread
  /// throws once its collective fails, which takes ddp_timeout at most.
  virtual void lost_others(const std::string& message) { static_cast<void>(message); }

 protected:
  RunControl() = default;
  ~RunControl() = default;
};

/// Never stops a run, and leaves the process alone.
class PlainRunControl final : public RunControl {};

}  // namespace longspan
