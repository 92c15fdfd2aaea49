// Signs of life of all ranks, so that an error can say which one is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "longspan/comm/mesh.h"

namespace longspan {

/// While one lives, a thread of its own posts every few seconds who this rank is (host, process),
/// which step it is in and that it lives, through a connection of its own to the run's key-value
/// store. Costs nothing where there is one rank. From several threads only where it is said.
class Heartbeat {
 public:
  /// Ends this process at once, with the message as its error. Called by the thread when another
  /// rank has been silent for timeout_seconds, or is known to have ended, and this one has not
  /// noticed by itself for some seconds more.
  using EndProcess = std::function<void(const std::string& message)>;

  /// Called by the thread, again and again, once a rank has announced that it ends because it was
  /// told to (comm/notices).
  using OnStopNotice = std::function<void(const std::string& why)>;

  /// Called by the thread, again and again, once nobody listens any more where the launcher served
  /// the store: the launcher has ended. Returns whether the run now saves and ends by itself, for
  /// which it has timeout_seconds; else EndProcess follows in some seconds.
  using OnLauncherGone = std::function<bool()>;

  Heartbeat(const Rendezvous& where, int64_t timeout_seconds, EndProcess end_process,
            OnStopNotice on_stop_notice, OnLauncherGone on_launcher_gone = {});
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Who this rank is, and who rank 0 is, which may be gone before it has given a sign of life.
  std::string card() const;
  void meet(const std::string& card_of_rank_0);

  /// Where this rank stands: "step 7". `step` orders the ranks.
  void stands_at(int64_t step, const std::string& doing);

  /// After a collective has failed: who is gone, silent or behind, in sentences that name rank,
  /// host, process and step; empty where nothing can be said (one rank). Takes some beats. The
  /// others learn that this rank is leaving because of it. From any thread.
  std::string diagnosis();

  /// What a rank had announced by then (see OnStopNotice); empty: nothing. After diagnosis().
  std::string stop_notice() const;

  /// This rank is about to end by a failure of its own, which the others may quote.
  void failed(const std::string& reason);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace longspan
