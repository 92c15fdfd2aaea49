// The program around a run: it may stop the run, and does to the process what a library does not.
// No torch.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace longspan {

/// How a run ended.
enum class RunEnd {
  kDone,
  kInterrupted,  // at once: the step under way was left
  kStopped,      // after a step, and all is saved
};

/// A run asks its host whether to go on, and tells it where it stands. By default a host
/// never stops a run; PlainHost is such a one, for a run of one process. `longspan train` has a
/// host that listens to signals.
class Host {
 public:
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// Leave the step and end.
  virtual bool requested() const { return false; }
  /// Finish the step, save and end.
  virtual bool told_to_stop() const { return false; }
  /// After the run has stopped: what told it to, in a clause.
  virtual std::string why_stopped() const { return "another process was told to stop"; }

  /// The training loop begins: from now on it asks requested() after every step.
  virtual void begin_steps() {}
  /// Everything is saved that will be saved.
  virtual void all_saved(RunEnd end) { static_cast<void>(end); }
  /// Sets what to call, on any thread, with the name of the signal by which the host ends this
  /// process before the training loop. An empty function unsets it.
  virtual void before_early_stop(std::function<void(const std::string& signal)> tell) {
    static_cast<void>(tell);
  }

  /// Sets what to call, on any thread, where a library's own thread finds that this process's GPU
  /// has lost others, with the library's reason. The host then ends the process, with the message
  /// that is returned. An empty function unsets it.
  virtual void before_loss_of_gpus(std::function<std::string(const std::string& reason)> tell) {
    static_cast<void>(tell);
  }

  /// Another process was told to stop before the training loop. Called again and again, on another
  /// thread.
  virtual void told_elsewhere(const std::string& why) { static_cast<void>(why); }
  /// The launcher has ended. Called again and again, on another thread. Returns whether the run
  /// saves and ends by itself.
  virtual bool launcher_gone() { return false; }

  /// How the run ended, for people: that a stop came before the first step; anything else.
  virtual void say_stopped_early(const std::string& why) { static_cast<void>(why); }
  virtual void say(const std::string& how) { static_cast<void>(how); }

  /// Of several threads that are about to say why the process ends, and to end it, the first that
  /// calls this goes on. The others stay in it.
  virtual void claim_last_words() {}

  /// Ends the process, whose other threads may wait forever for ranks that are gone. Called where
  /// there are several processes, on any thread.
  [[noreturn]] virtual void end_process(int status) = 0;

 protected:
  Host() = default;
  ~Host() = default;
};

class PlainHost final : public Host {
 public:
  [[noreturn]] void end_process(int) override {
    throw std::logic_error("PlainHost ends no process: several of them want a Host that does");
  }
};

}  // namespace longspan
