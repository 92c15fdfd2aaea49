// Handles stop signals while the program checks files, before other code handles these signals. No
// torch.
#pragma once

#include <thread>

namespace longspan {

/// For the lifetime of this object, SIGTERM and SIGUSR1 end the process at once with status 0,
/// since nothing has been trained yet. The calling thread must block both signals. After the
/// lifetime, both signals are blocked as before. No signal is lost: a signal has either ended the
/// process or is still pending. A signal that the process was started to ignore (nohup) stays
/// ignored. If the system has no descriptors left, both signals stay blocked.
class EarlyStops {
 public:
  /// `speaks`: prints the event to stderr.
  explicit EarlyStops(bool speaks);
  ~EarlyStops();
  EarlyStops(const EarlyStops&) = delete;
  EarlyStops& operator=(const EarlyStops&) = delete;

 private:
  void watch() const;

  bool speaks_;
  int signals_ = -1, end_ = -1;  // descriptors: pending signals, and the end of this object
  std::thread thread_;
};

}  // namespace longspan
