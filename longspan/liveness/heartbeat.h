// Heartbeats of all ranks. Error messages use the heartbeats to name lost ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/collective_counts.h"
#include "longspan/liveness/beat.h"
#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Posts this rank's beats. A separate thread posts this rank's host, process and step to the run's
/// key-value store every few seconds, through a separate connection. No-op where there is one rank.
/// Only members with the comment "Thread-safe" are thread-safe.
class Heartbeat {
 public:
  /// Ends this process at once, with the message as its error. The thread calls this function in
  /// the following cases, after some seconds in which the rest of the process may notice the case
  /// itself:
  ///   - another rank has been silent for timeout_seconds;
  ///   - another rank is known to have ended (also rank 0, if it serves the store and the store's
  ///     port refuses connections);
  ///   - the store has been silent for timeout_seconds while this rank made no progress;
  ///   - a living rank has kept others waiting in a collective for longer than timeout_seconds
  ///     (liveness/stall_detector); then the threads of all ranks call the function.
  using EndProcess = std::function<void(const std::string& message)>;

  /// Called repeatedly by the thread after a rank has announced that it was told to end
  /// (liveness/notices).
  using OnStopNotice = std::function<void(const std::string& why)>;

  /// Called repeatedly by the thread after the launcher, which served the store, has ended: the
  /// store's port refuses connections. Returns true if the run now saves and ends by itself; the
  /// run then has timeout_seconds to do so. If the result is false, the thread calls EndProcess
  /// some seconds later.
  using OnLauncherGone = std::function<bool()>;

  Heartbeat(const Rendezvous& where, int64_t timeout_seconds, EndProcess end_process,
            OnStopNotice on_stop_notice, OnLauncherGone on_launcher_gone = {});
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// card() identifies this rank. meet() takes rank 0's card, since rank 0 may end before its first
  /// beat.
  std::string card() const;
  void meet(const std::string& card_of_rank_0);

  /// From now on, beats contain the number of collectives that this rank has begun in each group
  /// (Mesh::collectives).
  void tell_of(std::shared_ptr<const CollectiveCounts> collectives);

  /// Sets the text by which beats describe this rank's work, e.g. "step 7". `step` shows which rank
  /// is behind.
  void stands_at(int64_t step, const std::string& doing);

  /// Sets the times that beats contain.
  void has_stepped(const StepTimes& times);
  /// Returns the beats of all ranks at the last check, on rank 0; elsewhere, and where there is one
  /// rank, none.
  std::vector<std::optional<Beat>> beats() const;

  /// Call after a failed collective. Returns sentences on the ranks that are gone, silent or
  /// behind, with rank, host, process and step; "" where nothing is known, or where there is one
  /// rank. Takes the time of a few beats, and as long again for each lost rank, up to three, that
  /// was to read the beats before this one. Tells the other ranks that this rank ends because of
  /// the failure. Thread-safe. `own_failure`: a cause that only this rank knows; "": none. Where no
  /// other rank is to blame, the other ranks are told the cause, and the result is "".
  std::string diagnosis(const std::string& own_failure = "");

  /// Call after diagnosis(). Returns a rank's announcement so far (see OnStopNotice), or "".
  std::string stop_notice() const;

  /// Tells the other ranks that this rank is about to end by its own failure. Their messages may
  /// quote `reason`. Thread-safe.
  void failed(const std::string& reason);

  /// Ends the thread. Where this rank serves the store, first waits until the other ranks have read
  /// from the store. The destructor calls leave(). Call leave() where the process ends without the
  /// destructor.
  void leave();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace longspan
