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

/// Under this name a rank says that it knows of the notice to stop.
std::string heard_of_stop(int rank);

/// For the rank that serves the store, which goes with its process: returns when all ranks know of
/// the notice to stop, or after 6 seconds. Returns at once on every other rank.
void wait_until_all_heard_of_stop(const Rendezvous& where);

/// One for each rank. Nothing happens where there is one rank.
class Notices {
 public:
  /// timeout_seconds as ddp_timeout: a store that does not answer is waited for only so long that
  /// the rest of it is left for what the ranks do without.
  explicit Notices(const Rendezvous& where, int64_t timeout_seconds = 1800);
  ~Notices();
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  /// Returns when all ranks have called it, however long one of them takes for what comes before:
  /// a disk may be slow for longer than a collective waits. Returns early when the heartbeat has
  /// raised the alarm: the next collective then says what is wrong. And when the store is gone, or
  /// silent for long (StoreClient): ranks that live meet in the next collective, whose connections
  /// need no store, but wait there for each other no longer than a collective does. Who leaves a
  /// silent store has it tell those who wait there, as soon as it speaks again, to do the same.
  void wait_for_all();

  /// This rank ends before the first step because it was told to. The others learn it by their
  /// heartbeats, for which the rank that serves the store waits. From any thread.
  void announce_stop(const std::string& why) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
