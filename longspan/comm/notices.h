// What ranks tell each other through the run's key-value store, beside the collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "longspan/comm/mesh.h"

namespace longspan {

/// Under these names the heartbeat finds, and leaves, what concerns it too.
inline constexpr const char* kNoticesPrefix = "/longspan/life";
inline constexpr const char* kStopNotice = "stop";
inline constexpr const char* kAlarm = "alarm";

/// One for each rank. Nothing happens where there is one rank.
class Notices {
 public:
  explicit Notices(const Rendezvous& where);
  ~Notices();
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  /// Returns when all ranks have called it, however long one of them takes for what comes before:
  /// a disk may be slow for longer than a collective waits. Returns early when the heartbeat has
  /// raised the alarm, or the store is gone: the next collective then says what is wrong.
  void wait_for_all();

  /// This rank ends before the first step because it was told to. The others learn it by their
  /// heartbeats. From any thread.
  void announce_stop(const std::string& why) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
