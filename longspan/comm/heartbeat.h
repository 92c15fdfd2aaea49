// Signs of life of all ranks, so that an error can say which one is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/collective_counts.h"
#include "longspan/comm/rendezvous.h"

namespace longspan {

/// While this object lives, a thread of its own posts every few seconds who this rank is (host,
/// process), which step it is in and that it lives, through its own connection to the run's
/// key-value store. Does nothing where there is one rank. Only members that say so may be called
/// from several threads.
class Heartbeat {
 public:
  /// Ends this process at once, with the message as its error. The thread calls it when another
  /// rank has been silent for timeout_seconds, or is known to have ended (as rank 0 is where it
  /// served the store and nobody listens there any more), or the store has been silent for as long
  /// while this rank stood still, and the rest of this process has not noticed that some seconds
  /// later. So it does on all ranks when one, which lives, has kept others waiting in a collective
  /// for longer (comm/standstill).
  using EndProcess = std::function<void(const std::string& message)>;

  /// The thread calls it again and again once a rank has announced that it ends because it was told
  /// to (comm/notices).
  using OnStopNotice = std::function<void(const std::string& why)>;

  /// The thread calls it again and again once nobody listens any more where the launcher served the
  /// store: the launcher has ended. It returns whether the run now saves and ends by itself, for
  /// which the run has timeout_seconds. If not, the thread calls EndProcess some seconds later.
  using OnLauncherGone = std::function<bool()>;

  Heartbeat(const Rendezvous& where, int64_t timeout_seconds, EndProcess end_process,
            OnStopNotice on_stop_notice, OnLauncherGone on_launcher_gone = {});
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// card() says who this rank is. meet() learns who rank 0 is, which may be gone before it has
  /// given a sign of life.
  std::string card() const;
  void meet(const std::string& card_of_rank_0);

  /// From now on tells how far this rank is in its groups (Mesh::collectives).
  void tell_of(std::shared_ptr<const CollectiveCounts> collectives);

  /// Tells what this rank is doing: "step 7". `step` tells which rank is behind.
  void stands_at(int64_t step, const std::string& doing);

  /// To be called after a collective has failed. Says who is gone, silent or behind, in sentences
  /// that name rank, host, process and step; empty where nothing can be said (one rank). Takes some
  /// beats. Tells the others that this rank is leaving because of it. May be called from any
  /// thread. `own_failure`: what this rank knows of it that others cannot, which they are told
  /// where none of them is to blame; then the result is empty. Empty: nothing.
  std::string diagnosis(const std::string& own_failure = "");

  /// To be called after diagnosis(). Returns what a rank had announced by then (see OnStopNotice);
  /// empty: nothing.
  std::string stop_notice() const;

  /// Tells the others that this rank is about to end by a failure of its own, which they may quote.
  /// May be called from any thread.
  void failed(const std::string& reason);

  /// Ends the thread, after those who ask have read what they need from the store that this rank
  /// serves; the destructor calls it. To be called where the process ends without the destructor.
  void leave();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace longspan
