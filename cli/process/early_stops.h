// Signals to stop that come while the program checks files, before anything else handles them. No
// torch.
#pragma once

#include <thread>

namespace longspan {

/// While this object lives, SIGTERM and SIGUSR1 end the process at once with status 0, since
/// nothing has been trained yet. The calling thread must block both. When the object dies they are
/// blocked as before and none is lost: each has either ended the process or is still pending. A
/// signal that the process was started to ignore (nohup) stays ignored. Where the system gives no
/// descriptors, both just stay blocked.
class EarlyStops {
 public:
  /// `speaks`: says on stderr what happened.
  explicit EarlyStops(bool speaks);
  ~EarlyStops();
  EarlyStops(const EarlyStops&) = delete;
  EarlyStops& operator=(const EarlyStops&) = delete;

 private:
  void watch() const;

  bool speaks_;
  int signals_ = -1, end_ = -1;  // descriptors: what is held, and that this object ends
  std::thread thread_;
};

}  // namespace longspan
