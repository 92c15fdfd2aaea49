// Detects hanging ranks from their beats over time.
//
// A rank that was itself suspended between two checks (because its machine was paused, for example)
// missed the events in between. The next check of this rank therefore restarts all observations.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "longspan/liveness/beat.h"

namespace longspan {

/// Records when each rank last made progress, by this rank's clock.
class LastProgress {
 public:
  using Clock = std::chrono::steady_clock;

  /// Call first in every check. Forgets everything after a pause of limit / 2 or longer.
  void begin(size_t num_ranks, Clock::time_point now, std::chrono::duration<double> limit);
  void has_moved(size_t rank) { moved_[rank] = checked_; }
  std::chrono::duration<double> still_for(size_t rank) const { return checked_ - moved_[rank]; }

 private:
  std::vector<Clock::time_point> moved_;
  Clock::time_point checked_;  // time of the last check
};

/// The longest silence of a rank, whatever ddp_timeout is: beats come every second or more often,
/// and LLaMA-Factory's examples set ddp_timeout to years.
inline constexpr std::chrono::minutes kMostSilence{10};

/// Watches the store's answers, by this rank's clock.
class StoreSilence {
 public:
  using Clock = std::chrono::steady_clock;

  void answered(Clock::time_point now) { last_answer_ = now; }
  Clock::time_point last_answer() const { return last_answer_; }
  /// Call after a request without an answer. Returns whether the last answer is older than `limit`
  /// or kMostSilence. If the call before is half of kMostSilence ago or longer, the silence begins
  /// now, since this process may have been suspended.
  bool check(Clock::time_point now, std::chrono::duration<double> limit);

 private:
  Clock::time_point last_answer_ = Clock::now(), checked_ = Clock::now();
};

/// Watches for silent ranks, by this rank's clock.
class SilenceDetector {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the current beats of rank 0 and the ranks after it. Returns sentences on another rank
  /// that is to blame (blame()) and has ended, or has not beaten for longer than `limit` or
  /// kMostSilence; else "".
  std::string check(const std::vector<std::optional<Beat>>& beats, int own_rank,
                    const std::string& own_machine, Clock::time_point now,
                    std::chrono::duration<double> limit);

 private:
  std::vector<std::optional<Beat>> last_;
  LastProgress since_;
};

/// Returns which ranks keep others waiting in a collective, as in "Rank 1 (host node7, process
/// 1234) has not come to collective 57 of the sequence group, where rank 0 waits, in step 7." Names
/// only the last rank of a chain of waiting ranks. Returns "" where all ranks are equally far.
/// Skips ranks without a beat.
std::string stragglers_of(const std::vector<std::optional<Beat>>& beats);

/// Watches for ranks that keep others waiting, by this rank's clock. Needed for backends like
/// NCCL's: no host waits for a collective, so no host notices a missing rank.
class StallDetector {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the current beats. Returns stragglers_of() for the ranks that have begun no step and no
  /// collective for longer than `limit`; "" where no rank is that late.
  std::string check(const std::vector<std::optional<Beat>>& beats, Clock::time_point now,
                    std::chrono::duration<double> limit);

 private:
  std::vector<std::optional<Beat>> last_;
  LastProgress since_;
};

}  // namespace longspan
