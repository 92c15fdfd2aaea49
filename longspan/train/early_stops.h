// Stops that come while files are looked at, before anything else could handle them. No torch.
#pragma once

#include <thread>

namespace longspan {

/// While one lives, SIGTERM and SIGUSR1, which the calling thread holds (blocks), end the process
/// at once with status 0: nothing has been trained yet. Afterwards they are held as before, and
/// none is lost: each either ended the process or waits for who comes next. One that the process
/// was started to ignore (nohup) stays ignored. Where the system gives no descriptors, they just
/// stay held.
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
