// Questions to the run's store that nobody answers. No torch.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>

#include "longspan/comm/collective_counts.h"
#include "longspan/comm/own_connections.h"
#include "longspan/comm/standstill.h"

namespace longspan {

/// Ends a question that a thread has waited with for too long: torch waits forever for a server
/// that is stopped, or that is behind a network which drops everything. A rank that gets on without
/// an answer needs none. Safe for threads.
class Unanswered {
 public:
  /// Of the thread that asks: it does so in this connection from now on, one question at a time.
  void asks_in(Connections connections);
  /// While this object lives, a question is under way.
  class Question {
   public:
    explicit Question(Unanswered& all) : all_(all) { all_.asks(true); }
    ~Question() { all_.asks(false); }
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;

   private:
    Unanswered& all_;
  };

  /// Of another thread, again and again: how far the rank is. Ends the connection where its
  /// question has been under way for longer than `limit`, and the rank has not moved meanwhile.
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
