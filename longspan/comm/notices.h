// What ranks tell each other through the run's key-value store, beside the collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "longspan/comm/rendezvous.h"

namespace longspan {

/// Names in the store that the heartbeat reads and writes too.
inline constexpr const char* kNoticesPrefix = "/longspan/life";
inline constexpr const char* kStopNotice = "stop";
inline constexpr const char* kAlarm = "alarm";

/// The name under which a rank says that it knows of the notice to stop.
std::string heard_of_stop(int rank);

/// The store ends with the process that serves it. On the rank that serves it, waits until every
/// other rank knows of the notice to stop or has left, `patience` at most. Returns at once on every
/// other rank.
void wait_until_all_heard_of_stop(const Rendezvous& where, std::chrono::duration<double> patience);

/// One object for each rank. Does nothing where there is one rank.
class Notices {
 public:
  /// timeout_seconds is ddp_timeout. A rank waits only a part of it for a store that does not
  /// answer, so that the rest is left for what the ranks do without the store.
  explicit Notices(const Rendezvous& where, int64_t timeout_seconds = 1800);
  ~Notices();
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  /// Returns when all ranks have called it, however long one of them takes for what comes before: a
  /// disk may be slow for longer than a collective waits. Returns early when the heartbeat's
  /// alarm has sounded for two seconds: the next collective then says what is wrong. Returns early,
  /// too, when the store is gone or silent for long (StoreClient). The ranks that live then meet in
  /// the next collective, whose connections need no store, and wait there for each other no longer
  /// than a collective does. A rank that leaves a silent store has a notice put there as soon as
  /// the store answers again, so that ranks that still wait there leave as well.
  void wait_for_all();

  /// From now on every rank has a heartbeat, or will have one at once. May be called from any
  /// thread.
  void all_have_met();

  /// Announces that this rank ends before the first step because it was told to. The others learn
  /// it by their heartbeats. Where the store is silent, tries again; the rank that serves the store
  /// waits until the others have heard. Each takes timeout_seconds at most, and 6 seconds where
  /// this rank has not met the others. May be called from any thread.
  void announce_stop(const std::string& why) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
