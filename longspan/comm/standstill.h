// Ranks that hang, as another one sees it over time.
//
// A rank that has itself stood still between two looks (its machine was paused, say) has seen
// nothing meanwhile: what it watches begins anew with its next look.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/beat.h"

namespace longspan {

/// Since when each rank is as it is, by this rank's clock.
class SinceWhen {
 public:
  using Clock = std::chrono::steady_clock;

  /// At every look, first. Forgets what is known after a pause of half of `limit` or longer.
  void begin(size_t num_ranks, Clock::time_point now, std::chrono::duration<double> limit);
  void has_moved(size_t rank) { moved_[rank] = looked_; }
  std::chrono::duration<double> still_for(size_t rank) const { return looked_ - moved_[rank]; }

 private:
  std::vector<Clock::time_point> moved_;
  Clock::time_point looked_;  // last
};

/// Watches for ranks that give no sign of life, by this rank's clock.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the beats of rank 0 and those behind it, as they are now. Who of the others is to blame
  /// (blame()) and has ended, or has not beaten for longer than `limit`; empty: nobody.
  std::string look(const std::vector<std::optional<Beat>>& beats, int own_rank,
                   const std::string& own_machine, Clock::time_point now,
                   std::chrono::duration<double> limit);

 private:
  std::vector<std::optional<Beat>> last_;
  SinceWhen since_;
};

/// Who keeps whom waiting in a collective, as in "Rank 1 (host node7, process 1234) has not come to
/// collective 57 of the sequence group, where rank 0 waits, in step 7." Of ranks that wait for each
/// other in a chain, only the last is named. Empty where all are equally far. A rank without a beat
/// is not looked at.
std::string laggards_of(const std::vector<std::optional<Beat>>& beats);

/// Watches over the beats of all ranks, by this rank's clock. A backend such as NCCL's makes no
/// host wait for a collective, and so tells none that another rank does not come.
class Standstill {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the beats as they are now. Who keeps others waiting (laggards_of) once nobody of these
  /// has begun a step or a collective for longer than `limit`; else empty.
  std::string look(const std::vector<std::optional<Beat>>& beats, Clock::time_point now,
                   std::chrono::duration<double> limit);

 private:
  std::vector<std::optional<Beat>> last_;
  SinceWhen since_;
};

}  // namespace longspan
