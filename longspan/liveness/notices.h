// Messages between ranks through the run's key-value store, without collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Keys in the store that the heartbeat also reads and writes.
inline constexpr const char* kNoticesPrefix = "/longspan/life";
inline constexpr const char* kStopNotice = "stop";
inline constexpr const char* kAlarm = "alarm";

/// Returns the key under which a rank confirms the stop notice.
std::string heard_of_stop(int rank);

/// The store ends with the process that serves it. So the serving rank waits until every other rank
/// has confirmed the stop notice or has left, for `patience` at most. No-op on other ranks.
void wait_until_all_heard_of_stop(const Rendezvous& where, std::chrono::duration<double> patience);

/// Notices of one rank. No-op where there is one rank.
class Notices {
 public:
  /// timeout_seconds is ddp_timeout. A rank waits for a silent store during a part of this time
  /// only; the rest is left for the next collective, which needs no store.
  explicit Notices(const Rendezvous& where, int64_t timeout_seconds = 1800);
  ~Notices();
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  /// A barrier without a time limit of its own, because writes to a slow disk before the barrier
  /// may take longer than the time limit of a collective. Returns early
  ///   - two seconds after the heartbeat has raised its alarm: the next collective then reports the
  ///     cause;
  ///   - if the store is gone, or silent for long (StoreClient). The living ranks then meet in the
  ///     next collective, which needs no store, and wait there no longer than its timeout.
  /// If a rank stops waiting because the store is silent, the rank's notice is written to the store
  /// once the store answers again. The notice makes ranks that still wait stop as well.
  void wait_for_all();

  /// From now on every rank has a heartbeat, or is about to have one. Thread-safe.
  void all_have_met();

  /// Announces that this rank was told to end before the first step. The other ranks learn of the
  /// stop from their heartbeats. Retries where the store is silent. The rank that serves the store
  /// waits until the others have confirmed. Each step takes timeout_seconds at most, or 6 seconds
  /// before all_have_met(). Thread-safe.
  void announce_stop(const std::string& why) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
