// Ends questions to the run's store that get no answer. No torch.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "longspan/comm/collective_counts.h"
#include "longspan/liveness/standstill.h"
#include "longspan/rendezvous/own_connections.h"

namespace longspan {

/// Ends a question that has lasted too long. torch waits forever for a server that is stopped, or
/// that is behind a network that drops everything. A rank that makes progress needs no answer, and
/// its question goes on. Thread-safe.
class Unanswered {
 public:
  /// Registers the asking thread's store connections. From now on it asks in these, one question at
  /// a time.
  void asks_in(Connections connections);
  /// Marks a question as under way for its lifetime.
  class Question {
   public:
    explicit Question(Unanswered& all) : all_(all) { all_.asks(true); }
    ~Question() { all_.asks(false); }
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;

   private:
    Unanswered& all_;
  };

  /// Called repeatedly by another thread with the rank's progress. Shuts the connections down where
  /// a question has been under way for longer than `limit` without any progress of the rank.
  void look(const StartedCollectives& begun, const std::string& doing,
            SinceWhen::Clock::time_point now, std::chrono::duration<double> limit);

 private:
  void asks(bool under_way);

  std::mutex mutex_;
  Connections connections_;
  bool under_way_ = false, is_new_ = false;
  SinceWhen since_;
  std::pair<StartedCollectives, std::string> last_;
};

}  // namespace longspan
