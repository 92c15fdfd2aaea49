// The time that a rank spends in waits for other ranks. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace c10 {
enum class DeviceType : int8_t;
}  // namespace c10

namespace longspan {

/// Measures waits for collectives. Where the host waits, the time is the host's. Where the device's
/// stream waits (NCCL), the time is between two events of the stream, before and after the wait; a
/// time counts once the stream has passed both. One thread at a time.
class WaitTimer {
 public:
  WaitTimer();
  ~WaitTimer();
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

  /// Calls `wait`. `device`: kCPU where the host waits in the call; otherwise the type of the
  /// current device, whose current stream waits.
  void measure(c10::DeviceType device, const std::function<void()>& wait);
  /// Returns the seconds of all waits that have ended. Does not wait itself.
  double seconds();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
