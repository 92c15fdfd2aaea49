// A server of rollouts: answers to prompts, with patience. No torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/rollouts/completion.h"
#include "longspan/rollouts/http.h"
#include "longspan/rollouts/waiting.h"

namespace longspan {

/// Waits between attempts, longer each time. The time limit counts from the last success.
class Patience {
 public:
  Patience(std::string url, int64_t timeout);
  void succeeded();
  /// Says "Waiting for the server URL (PROBLEM).", once for each problem, and waits. Returns false
  /// if `waiting.stops` returned true. Throws UserError, with the URL, the problem and the time, if
  /// the last success is `timeout` seconds ago.
  bool wait(const std::string& problem, const Waiting& waiting);

 private:
  using Clock = std::chrono::steady_clock;
  std::string url_, said_;
  int64_t timeout_;
  Clock::time_point success_;
  std::chrono::milliseconds pause_;
};

/// Several threads may use a client.
class ServerClient {
 public:
  /// `url`: http://HOST:PORT, also with a path. `timeout`: seconds without an answer.
  /// `api_key`: the bearer token of each request; empty: none.
  ServerClient(const std::string& url, int64_t concurrency, int64_t timeout, std::string api_key);

  /// Returns `count` answers to each prompt. Waits while the server cannot be reached or is busy
  /// (429, 5xx), and asks again for answers that are missing. nullopt: `waiting.stops` returned
  /// true. Throws UserError, with the server and the prompt.
  std::optional<std::vector<std::vector<Completion>>> answers(
      const CompletionRules& rules, const std::vector<std::vector<int32_t>>& prompts, int64_t count,
      uint64_t seed, const Waiting& waiting) const;

  /// Sends a POST of a JSON body, which may be empty, with the same patience. Returns false if
  /// `waiting.stops` returned true. Throws UserError: another status than 2xx, or a JSON object
  /// with "success": false or, also as the last event of a stream, "status": "error". `remedy`:
  /// further advice.
  bool post(std::string_view path, const std::string& json, std::string_view remedy,
            const Waiting& waiting) const;

  /// True if the server's list of models, by a GET, has a model or an adapter of this name.
  bool lists(std::string_view path, const std::string& name,
             const std::function<bool()>& stops) const;

  const std::string& url() const { return url_; }
  double seconds() const { return limits_.total_seconds; }

 private:
  std::string url_, api_key_;
  int64_t timeout_;
  HttpLimits limits_;
};

}  // namespace longspan
