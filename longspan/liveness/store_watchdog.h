// Ends requests to the run's store that get no answer. No torch.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "longspan/comm/collective_counts.h"
#include "longspan/liveness/stall_detector.h"
#include "longspan/rendezvous/own_connections.h"

namespace longspan {

/// Ends a request that has lasted too long. torch waits forever for a stopped server, and for a
/// server behind a network that drops all packets. A rank that makes progress needs no answer, and
/// its request goes on. Thread-safe.
class StoreWatchdog {
 public:
  /// Registers the requesting thread's store connections. From now on this thread sends its
  /// requests over these connections, one at a time.
  void watch_connections(Connections connections);
  /// Marks a request as under way for its lifetime.
  class Request {
   public:
    explicit Request(StoreWatchdog& all) : all_(all) { all_.set_under_way(true); }
    ~Request() { all_.set_under_way(false); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

   private:
    StoreWatchdog& all_;
  };

  /// Called repeatedly by another thread with the rank's progress. Shuts the connections down where
  /// a request has been under way for longer than `limit` without any progress of the rank.
  void check(const StartedCollectives& begun, const std::string& doing,
             LastProgress::Clock::time_point now, std::chrono::duration<double> limit);

 private:
  void set_under_way(bool under_way);

  std::mutex mutex_;
  Connections connections_;
  bool under_way_ = false, is_new_ = false;
  LastProgress since_;
  std::pair<StartedCollectives, std::string> last_;
};

}  // namespace longspan
